"""One batch: rows with real taps over guessed ones, then a tree for each session that wants one.

It blocks. A session that fails is left out, and the others do not feel it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from draft_service.drafters import Drafter, Rows, Wanted
from draft_service.following import Following
from draft_service.kv_pool import KvPoolFullError
from draft_service.scoring import Scored
from protos.messages import DraftTimings, DraftTree

# Rows of all sessions in a forward: bounds the attention's memory, and how long a prompt that is
# taken in holds up the sessions beside it.
ROWS_OF_A_BATCH = 256


@dataclass(frozen=True)
class News:
    """What a batch came to for one session: a tree, an error that ended it, or neither yet."""

    following: Following
    frames_done: int
    tree: DraftTree | None
    error: Exception | None
    scored: Sequence[Scored]

    @classmethod
    def of(cls, following: Following, tree: DraftTree | None = None) -> News:
        return cls(
            following,
            following.frames_done(),
            tree,
            following.failure,
            following.take_scored(),
        )


@dataclass(frozen=True)
class Report:
    """What a batch came to, and how many rows it had."""

    news: Sequence[News]
    extended_rows: int = 0
    grown_rows: int = 0


def run_batch(
    drafter: Drafter[Any], sessions: Sequence[Following], row_budget: int = ROWS_OF_A_BATCH
) -> Report:
    """Take in a piece of every backlog; draft for those that are up to date."""
    started_ns = time.perf_counter_ns()
    rows = _next_rows(sessions, row_budget)
    if rows:
        drafter.extend(rows)
    extended_ns = time.perf_counter_ns()
    wanted = _wanted(sessions)
    # Also for nobody: a drafter may have put off rows until now.
    drafts = drafter.draft(list(wanted.values())) if rows or wanted else []
    times = _Times(started_ns, extended_ns, time.perf_counter_ns())
    trees = {
        following: following.tree(draft, times.of(following))
        for following, draft in zip(wanted, drafts, strict=True)
    }
    return Report(
        [News.of(one, trees.get(one)) for one in sessions],
        extended_rows=sum(len(piece.tokens) for piece in rows),
        grown_rows=sum(draft.num_rows for draft in drafts),
    )


class _Times(NamedTuple):
    """When a batch began, when its rows were taken in, and when its trees were grown."""

    started_ns: int
    extended_ns: int
    grown_ns: int

    def of(self, following: Following) -> DraftTimings:
        return DraftTimings(
            queue_us=(self.started_ns - following.arrived_ns) // 1000,
            extend_us=(self.extended_ns - self.started_ns) // 1000,
            grow_us=(self.grown_ns - self.extended_ns) // 1000,
        )


def _next_rows(sessions: Sequence[Following], row_budget: int) -> list[Rows[Any]]:
    behind = [following for following in sessions if following.is_behind]
    shares = fair_shares([following.backlog.num_rows for following in behind], row_budget)
    pieces = []
    for following, share in zip(behind, shares, strict=True):
        try:
            pieces.append(following.next_rows(share))
        except KvPoolFullError as error:
            following.fail(error)
    return pieces


def _wanted(sessions: Sequence[Following]) -> dict[Following, Wanted[Any]]:
    found = {}
    for following in sessions:
        try:
            if (wanted := following.wanted()) is not None:
                found[following] = wanted
        except KvPoolFullError as error:
            following.fail(error)
    return found


def fair_shares(pending: Sequence[int], budget: int) -> list[int]:
    """Return how many rows each may take: all of its own, or as many as any other that cannot.

    What those with few rows leave over goes to the others. Everybody may take at least one.
    """
    shares = [0] * len(pending)
    for done, place in enumerate(sorted(range(len(pending)), key=pending.__getitem__)):
        shares[place] = min(pending[place], max(1, budget // (len(pending) - done)))
        budget -= shares[place]
    return shares
