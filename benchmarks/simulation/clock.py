"""Simulated time: what happens when, and machines that do one thing at a time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol


class Clock:
    """Events in the order of their times; of equal times, in the order in which they were set."""

    def __init__(self) -> None:
        self.now = 0.0
        """Seconds since the beginning."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Let something happen so much later."""
        self.at(self.now + seconds, event)

    def at(self, moment: float, event: Callable[[], None]) -> None:
        """Let something happen at a moment, or now if it is past."""
        heapq.heappush(self._events, (max(moment, self.now), next(self._numbers), event))

    def run_until(self, moment: float) -> None:
        """Let time pass."""
        while self._events and self._events[0][0] <= moment:
            self.now, _, event = heapq.heappop(self._events)
            event()
        self.now = moment


class Work(NamedTuple):
    """What occupies a machine, and what becomes of it."""

    seconds: float
    done: Callable[[], None]


class Worker(Protocol):
    """Somebody with work for a machine."""

    def next_work(self) -> Work | None:
        """Return what to run now, if anything."""


class Machine:
    """Runs one piece of work at a time. Of its workers, the first that has any goes first.

    A target and a drafter in one engine share a machine; services have one each.
    """

    def __init__(self, clock: Clock) -> None:
        self.busy_s: dict[Worker, float] = {}
        """How long each worker has occupied it."""
        self._clock = clock
        self._running = False
        self._woken = False

    def add(self, worker: Worker) -> None:
        """Take a worker on."""
        self.busy_s[worker] = 0.0

    def wake(self) -> None:
        """Look for work once everything that happens at this moment has happened."""
        if not self._woken:
            self._woken = True
            self._clock.after(0.0, self._look)

    def _look(self) -> None:
        self._woken = False
        if self._running:
            return
        for worker in self.busy_s:
            work = worker.next_work()
            if work is not None:
                self._running = True
                self._clock.after(work.seconds, partial(self._end, worker, work))
                return

    def _end(self, worker: Worker, work: Work) -> None:
        self._running = False
        self.busy_s[worker] += work.seconds
        work.done()
        self.wake()
