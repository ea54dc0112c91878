"""Which sessions have something to be done, and the batches made of them. Sans-I/O.

A session that arrives while a batch runs joins the next one; nothing is freed while a batch that
uses it runs, as all of this is called by one thread.
"""

from __future__ import annotations

from typing import Any

import structlog

from draft_service.drafters import Drafter
from draft_service.engine import ROWS_OF_A_BATCH, News, Report, run_batch
from draft_service.following import Following
from protos import speculation_pb2 as pb

log = structlog.get_logger()


class Batches:
    """The sessions that are ready, by drafter. The drafter that ran last is the last to run."""

    def __init__(self, row_budget: int = ROWS_OF_A_BATCH) -> None:
        """Batches of so many rows at most."""
        self._row_budget = row_budget
        self._last: frozenset[Following] = frozenset()
        # Dictionaries without values: sets that keep their order.
        self._ready: dict[Drafter[Any], dict[Following, None]] = {}

    @property
    def are_waiting(self) -> bool:
        """Whether there is a batch to run."""
        return bool(self._ready)

    @property
    def lack_company(self) -> bool:
        """Whether somebody is missing who shared the last batch, and so a step of the target."""
        return self.are_waiting and any(
            one not in self._ready.get(one.drafter, ()) for one in self._last
        )

    def arrive(self, following: Following, frame: pb.TapFrame, arrived_ns: int) -> None:
        """Take a session's next frame. Whatever is wrong with it ends the session, and no other."""
        if following.failure is not None:
            return
        try:
            following.arrive(frame, arrived_ns)
        except Exception as error:
            following.fail(error)
        self._ready.setdefault(following.drafter, {})[following] = None

    def close(self, following: Following) -> None:
        """Let go of a session, whatever is left to be done for it."""
        following.follower.close()
        self._last -= {following}
        ready = self._ready.get(following.drafter, {})
        ready.pop(following, None)
        if not ready:
            self._ready.pop(following.drafter, None)

    def run_next(self) -> Report:
        """Run the next batch. The sessions that failed in it have their error."""
        drafter = next(iter(self._ready))
        sessions = list(self._ready.pop(drafter))
        self._last = frozenset(sessions)
        report = _run(drafter, sessions, self._row_budget)
        behind = [following for following in sessions if following.is_behind]
        if behind:
            self._ready[drafter] = dict.fromkeys(behind)
        return report


def _run(drafter: Drafter[Any], sessions: list[Following], row_budget: int) -> Report:
    """Run a batch. If the drafter itself fails, so do all sessions in it, and no others."""
    try:
        return run_batch(drafter, sessions, row_budget)
    except Exception as error:
        log.exception("batch_failed", drafter_id=drafter.drafter_id)
        for following in sessions:
            following.fail(error)
        return Report([News.of(following) for following in sessions])
