"""The simulated target: batches of whatever is ready, one step after the other.

Batches are made as `target_service.step_loop` makes them, with the same `Company`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from benchmarks.simulation.clock import Clock, Machine, Work
from benchmarks.simulation.guesses import said_at, verify
from benchmarks.simulation.hardware import Forward
from protos.messages import DraftTree, Verdict, VerifyTimings
from target_service.company import Company, Ready


class Frame(NamedTuple):
    """What a drafter is told: so many rows of taps, up to a committed length."""

    committed_len: int
    rows: int


@dataclass(eq=False)
class Decode:
    """The target's half of a session, and who is told what became of it."""

    committed_len: int
    on_verdict: Callable[[Verdict], None]
    followers: dict[object, Callable[[Frame], None]] = field(default_factory=dict)
    """Who is told of every frame."""
    tree: DraftTree | None = None
    until_len: int = 0
    ready_since: float = 0.0

    @property
    def told(self) -> Frame:
        """Everything that was committed so far, for whoever begins to follow."""
        return Frame(self.committed_len, self.committed_len - 1)

    @property
    def runs(self) -> bool:
        """Whether it goes on by itself."""
        return self.committed_len < self.until_len


class Target:
    """All sessions' verifications, on one machine."""

    def __init__(
        self, clock: Clock, machine: Machine, forward: Forward, rng: random.Random, jitter: float
    ) -> None:
        """`jitter`: spread of a step's time, as a share of it."""
        self._clock, self._machine = clock, machine
        self._forward, self._rng, self._jitter = forward, rng, jitter
        self._ready: dict[Decode, None] = {}
        self._company = Company()
        machine.add(self)

    def begin(self, decode: Decode, until_len: int) -> None:
        """Take a session in: the last token of its prompt is the first root."""
        decode.until_len = until_len
        decode.tree = _plain(decode)
        self._put(decode)

    def verify(self, decode: Decode, tree: DraftTree) -> None:
        """Queue a tree. A stale one is dropped."""
        if tree.committed_len == decode.committed_len and not decode.runs:
            decode.tree = tree
            self._company.came_back(decode, self._clock.now)
            self._put(decode)

    def run(self, decode: Decode, until_len: int) -> None:
        """Let a session decode plainly until so many tokens are committed."""
        decode.until_len = until_len
        if decode.tree is None and decode.runs:
            self._company.stays_away(decode)
            decode.tree = _plain(decode)
            self._put(decode)

    def next_work(self) -> Work | None:
        """Return the next step, unless sessions that may come back in a moment would miss it."""
        if not self._ready:
            return None
        wait_s = self._company.waits_for_s(self._clock.now)
        if wait_s:
            self._clock.after(wait_s, self._machine.wake)
            return None
        batch = list(self._ready)
        self._ready.clear()
        rows = sum(len(decode.tree.tokens) for decode in batch if decode.tree)
        noise = max(self._rng.gauss(1.0, self._jitter), 0.5)
        seconds = self._forward.seconds(rows, len(batch)) * noise
        started = self._clock.now
        return Work(seconds, lambda: self._end(batch, rows, started))

    def _put(self, decode: Decode) -> None:
        decode.ready_since = self._clock.now
        self._ready[decode] = None
        self._machine.wake()

    def _end(self, batch: list[Decode], rows: int, started: float) -> None:
        now = self._clock.now
        accept_us = int(self._forward.accept_ms * 1000)
        forward_us = int((now - started) * 1e6) - accept_us
        for decode in batch:
            queue_us = int((started - decode.ready_since) * 1e6)
            self._commit(decode, VerifyTimings(queue_us, forward_us, accept_us, rows))
        away = [decode for decode in batch if decode.tree is None]
        running = sum(decode.runs for decode in self._ready)
        ready = Ready(len(self._ready) - running, running)
        self._company.step_ended(away, ready, now, now - started)

    def _commit(self, decode: Decode, timings: VerifyTimings) -> None:
        assert decode.tree is not None, "a batch is of trees"
        verdict = verify(decode.tree, timings)
        decode.tree = None
        decode.committed_len += len(verdict.tokens)
        # Taps first: their way to a tree is longer.
        for on_frame in decode.followers.values():
            on_frame(Frame(decode.committed_len, len(verdict.tokens)))
        decode.on_verdict(verdict)
        if decode.runs:
            decode.tree = _plain(decode)
            self._put(decode)


def _plain(decode: Decode) -> DraftTree:
    return DraftTree.plain(decode.committed_len, said_at(decode.committed_len - 1))
