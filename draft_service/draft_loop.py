"""Batch after batch, in a thread of their own.

Frames go to the thread straight from where they are read, and what a batch came to is told on the
event loop at once: one wake-up each way. Drafters that take no time run where a frame is read.
Shadows run in the thread too, when nothing else is to be done, in batches that are soon over.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

from draft_service.batches import Batches
from draft_service.engine import Report
from draft_service.following import Following
from draft_service.load import Load
from draft_service.standings import Standings
from protos import speculation_pb2 as pb

# How long a shadow's batch may hold up those that arrive meanwhile.
_ROWS_OF_A_SHADOW_BATCH = 64
# How long a batch waits for those who shared the last one: their taps come from one step, and who
# missed a batch would wait for all of it.
_GATHER_S = 0.0004


class DraftLoop:
    """Takes in the frames of all sessions, and puts their trees in their outboxes.

    Made and called on the event loop.
    """

    def __init__(self, load: Load, standings: Standings) -> None:
        self.load = load
        self._standings = standings
        self._loop = asyncio.get_running_loop()
        self._instant = Batches()
        self._blocking = Batches()
        self._shadows = Batches(_ROWS_OF_A_SHADOW_BATCH)
        self._events: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="drafter", daemon=True)
        self._thread.start()

    async def take(self, following: Following, frame: pb.TapFrame) -> None:
        """Hand over a session's next frame. Waits while too many before it are not taken in."""
        arrived_ns = time.perf_counter_ns()
        await following.in_flight.acquire()
        batches = self._batches_of(following)
        if batches is not self._instant:
            self._events.put(partial(batches.arrive, following, frame, arrived_ns))
            return
        batches.arrive(following, frame, arrived_ns)
        while batches.are_waiting:
            self._tell(batches.run_next())

    def close(self, following: Following) -> None:
        """Let go of a session. What a running batch still uses is freed when that ends."""
        batches = self._batches_of(following)
        if batches is not self._instant:
            self._events.put(partial(batches.close, following))
        else:
            batches.close(following)

    def _batches_of(self, following: Following) -> Batches:
        if following.is_shadow:
            return self._shadows
        return self._blocking if following.drafter.blocking else self._instant

    def stop(self) -> None:
        """Wait for the batch that runs, and end the thread.

        A thread that still ran while the interpreter ends would be torn out of native code.
        """
        self._events.put(self._stop)
        self._thread.join()

    def _stop(self) -> None:
        self._stopping = True

    def _run(self) -> None:
        while not self._stopping:
            self._take_events()
            self._gather()
            if self._next_batches.are_waiting and not self._stopping:
                self._run_next()

    @property
    def _next_batches(self) -> Batches:
        """Those of shadows come last."""
        return self._blocking if self._blocking.are_waiting else self._shadows

    def _run_next(self) -> None:
        """Run a batch. Nothing of it is kept: a drafter that was unloaded must go."""
        report = self._next_batches.run_next()
        # The loop may be gone before the thread is.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._tell, report)

    def _take_events(self) -> None:
        """Take all that was handed over; if there is nothing else to do, wait for it."""
        if not self._next_batches.are_waiting:
            self._events.get()()
        with suppress(Empty):
            while True:
                self._events.get_nowait()()

    def _gather(self) -> None:
        """Wait a moment for company."""
        until = time.perf_counter() + _GATHER_S
        while self._blocking.lack_company and not self._stopping:
            try:
                self._events.get(timeout=max(until - time.perf_counter(), 0))()
            except Empty:
                return

    def _tell(self, report: Report) -> None:
        self.load.count(report)
        for news in report.news:
            following = news.following
            for _ in range(news.frames_done):
                following.in_flight.release()
            if news.error is not None:
                following.outbox.end(news.error)
            elif news.tree is not None:
                following.outbox.put(news.tree)
            self._standings.record(following, news.scored)
