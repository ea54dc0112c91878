"""The first claim: in every window of so many seconds auto is hardly slower than plain decoding.

A window begins with any cycle and ends with the one that fills it, on the clock of auto's own
decoding. So some window begins right at each change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.adversity.cycle import Cycle
from benchmarks.adversity.ratio import ratio_of
from benchmarks.intervals import Estimate

WINDOW_S = 30.0
LEAST_OF_PLAIN = 0.98


@dataclass(frozen=True)
class Window:
    """Auto against plain from one moment of auto's decoding to another."""

    begin_s: float
    end_s: float
    ratio: Estimate

    def as_json(self) -> dict[str, Any]:
        """Seconds and ratio."""
        return {
            "begin_s": round(self.begin_s, 2),
            "end_s": round(self.end_s, 2),
            **self.ratio.as_json("auto_over_plain"),
        }


def windows(cycles: Sequence[Cycle], length_s: float = WINDOW_S) -> Iterator[Window]:
    """Yield every window that the timeline fills."""
    ends = [0.0]
    for cycle in cycles:
        ends.append(ends[-1] + cycle.runs["auto"].seconds)
    for first, begin_s in enumerate(ends):
        last = next((n for n, end_s in enumerate(ends) if end_s - begin_s >= length_s), None)
        if last is not None:
            ratio = ratio_of(cycles[first:last], "auto", "plain")
            yield Window(begin_s, ends[last], ratio)
