"""Sizes of a drafter's steps on a GPU: each is one captured graph.

A step takes rows with real taps, and grows trees of some sessions level by level. Rows and sessions
that a bucket has too many of are padding, and cost next to nothing, as weights are all that takes
time; a level too many costs a level, so there are few depths that are not exact.

A tree's rows lie in 64 slots behind the real ones, as attention knows a path by 64 bits: a plan
that is wider than that is narrowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from protos.messages import Plan

ROWS = (16, 64, 256)
SESSIONS = (1, 4, 16, 64)
WIDTHS = (1, 2, 4, 8, 16)
DEPTHS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 63)
MOST_ROWS = ROWS[-1]
"""Of a step, and of a level of all its trees."""
TREE_SLOTS = 64
"""Slots for the rows of one tree."""
# What most rounds are: a chain for each of a few sessions, after the rows of the last round.
_FIRST_DEPTHS = (1, 2, 3, 4, 5)
_FIRST_SESSIONS = (1, 4, 16)


class Bucket(NamedTuple):
    """The most of each that a step has. A depth of 0 grows nothing."""

    rows: int
    sessions: int
    width: int
    depth: int


class Growth(NamedTuple):
    """What a tree grows to: children of a node, nodes of a level; and levels."""

    width: int
    steps: int

    @classmethod
    def of(cls, plan: Plan) -> Growth:
        """Return what a plan comes to. More than may be kept in all is of no use."""
        steps = min(plan.steps, plan.draft_tokens - 1)
        width = min(plan.top_k, plan.draft_tokens - 1, WIDTHS[-1])
        return cls(min(width, max(_widths_of(steps))), steps)

    def fits(self, width: int) -> bool:
        """Whether a bucket of this width has slots for all rows: the last level is not run."""
        return self.width <= width and width in _widths_of(self.steps)


def _widths_of(steps: int) -> list[int]:
    """Return the widths in which so many levels can be grown."""
    return [width for width in WIDTHS if (steps - 1) * width <= TREE_SLOTS]


def bucket_of(rows: int, sessions: int, growths: Sequence[Growth]) -> Bucket:
    """Return the smallest bucket for a step: there must be one."""
    width = width_of(growths)
    assert all(growth.fits(width) for growth in growths), growths
    depth = _at_least(DEPTHS, max((growth.steps for growth in growths), default=0))
    return Bucket(_at_least(ROWS, rows), _at_least(SESSIONS, sessions), width, depth)


def width_of(growths: Iterable[Growth]) -> int:
    """Return the width of a bucket for trees that grow together."""
    return _at_least(WIDTHS, max((growth.width for growth in growths), default=1))


def most_sessions(width: int) -> int:
    """Return how many sessions a step has at most where its trees are so wide."""
    return max(count for count in SESSIONS if count * width <= MOST_ROWS)


def first_buckets() -> list[Bucket]:
    """Return those that are captured at start; others are when they come the second time."""
    chains = [Bucket(ROWS[0], n, 1, depth) for n in _FIRST_SESSIONS for depth in _FIRST_DEPTHS]
    return chains + [Bucket(MOST_ROWS, n, 1, 0) for n in _FIRST_SESSIONS]


def _at_least(sizes: Sequence[int], wanted: int) -> int:
    return next(size for size in sizes if size >= wanted)
