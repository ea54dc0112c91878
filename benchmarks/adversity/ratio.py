"""How fast one arm was, in times of another, over the same cycles; and whether that is enough.

The ratio is the time that the other needs for our tokens over the time that we needed. For one
session both have the same tokens, and it is the ratio of their times. Whole cycles are what is
drawn again for its interval, so what slows a cycle slows both.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from benchmarks.adversity.cycle import Cycle
from benchmarks.intervals import Estimate, ratio_of_sums


class Verdict(StrEnum):
    """Whether ratios keep a limit."""

    HOLDS = "holds"
    """All of them do."""
    OPEN = "within noise"
    """Some do not, but their intervals reach it."""
    FAILS = "fails"
    """One does not, and all of its interval is below."""
    UNMEASURED = "not measured"
    """There is none."""


def ratio_of(cycles: Sequence[Cycle], ours: str, theirs: str) -> Estimate:
    """Return how fast our arm was in times of theirs. Raises ValueError for no cycles."""
    our_times = [cycle.runs[ours].seconds for cycle in cycles]
    their_times = [cycle.runs[ours].tokens / cycle.runs[theirs].rate for cycle in cycles]
    return ratio_of_sums(their_times, our_times)


def judge(ratios: Sequence[Estimate], limit: float) -> Verdict:
    """Return whether all ratios are at least the limit."""
    if not ratios:
        return Verdict.UNMEASURED
    below = [ratio for ratio in ratios if ratio.value < limit]
    if not below:
        return Verdict.HOLDS
    return Verdict.FAILS if any(ratio.high < limit for ratio in below) else Verdict.OPEN
