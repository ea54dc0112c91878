"""The simulated draft service: takes in taps, and pushes a tree for each newest state.

Batches are made as `draft_service.engine` makes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from benchmarks.simulation.clock import Clock, Machine, Work
from benchmarks.simulation.guesses import Guesser
from benchmarks.simulation.hardware import Drafting
from benchmarks.simulation.target import Frame
from draft_service.engine import ROWS_OF_A_BATCH, fair_shares
from draft_service.tree_growth import max_rows
from protos.messages import DraftTimings, DraftTree, Plan

DRAFTER_ID = "simulated"


@dataclass(eq=False)
class Following:
    """The draft service's half of a session: its standing plan, and what waits for it."""

    plan: Plan
    guesser: Guesser
    on_tree: Callable[[DraftTree], None]
    committed_len: int = 0
    backlog: int = 0
    """Rows that were told and are not yet taken in."""
    arrived: float = 0.0


class _Wanted(NamedTuple):
    """A tree that a batch grows."""

    following: Following
    plan: Plan
    committed_len: int
    queue_us: int


class Drafter:
    """One replica. What arrives while a batch runs joins the next one."""

    def __init__(self, clock: Clock, machine: Machine, drafting: Drafting) -> None:
        self._clock, self._machine, self._drafting = clock, machine, drafting
        self._ready: dict[Following, None] = {}
        self._gathered_at = 0.0
        self._last: frozenset[Following] = frozenset()
        machine.add(self)

    def arrive(self, following: Following, frame: Frame) -> None:
        """Take a session's next taps."""
        if not self._ready:
            self._gathered_at = self._clock.now + self._drafting.gather_ms / 1000
            self._clock.at(self._gathered_at, self._machine.wake)
        following.committed_len = frame.committed_len
        following.backlog += frame.rows
        following.arrived = self._clock.now
        self._ready[following] = None
        self._clock.at(self._clock.now, self._machine.wake)

    def close(self, following: Following) -> None:
        """Let go of a session."""
        self._ready.pop(following, None)
        self._last -= {following}

    @property
    def _gathers(self) -> bool:
        """Whether somebody is missing who shared the last batch, and may come in a moment."""
        return self._clock.now < self._gathered_at and not self._last <= self._ready.keys()

    def next_work(self) -> Work | None:
        """Return the next batch: a piece of every backlog, a tree for all that are up to date."""
        if not self._ready or self._gathers:
            return None
        batch = list(self._ready)
        self._last = frozenset(batch)
        shares = fair_shares([following.backlog for following in batch], ROWS_OF_A_BATCH)
        for following, share in zip(batch, shares, strict=True):
            following.backlog -= share
        self._ready = {following: None for following in batch if following.backlog}
        wanted = [self._wanted(one) for one in batch if not one.backlog and one.plan.steps]
        extend_s, grow_s = self._drafting.extend_s(sum(shares)), self._grow_s(wanted)
        timings = DraftTimings(0, int(extend_s * 1e6), int(grow_s * 1e6))
        return Work(extend_s + grow_s, lambda: self._end(wanted, timings))

    def _wanted(self, following: Following) -> _Wanted:
        queue_us = int((self._clock.now - following.arrived) * 1e6)
        return _Wanted(following, following.plan, following.committed_len, queue_us)

    def _grow_s(self, wanted: list[_Wanted]) -> float:
        """Return the time to grow trees level by level, all sessions at once."""
        steps = max((one.plan.steps for one in wanted), default=0)
        return self._drafting.grow_s(steps, sum(max_rows(one.plan) for one in wanted))

    def _end(self, wanted: list[_Wanted], timings: DraftTimings) -> None:
        for one in wanted:
            # Otherwise more was told meanwhile: this tree would be stale.
            if one.committed_len == one.following.committed_len:
                tree = one.following.guesser.tree(one.committed_len, one.plan)
                own = replace(timings, queue_us=one.queue_us)
                one.following.on_tree(replace(tree, drafter_id=DRAFTER_ID, timings=own))
