"""The second claim: so many rounds after a change auto is about as fast as the best fixed setting.

Plain decoding is one of the settings. Which of them is best is told by the same cycles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.adversity.cycle import Cycle
from benchmarks.adversity.ratio import ratio_of
from benchmarks.intervals import Estimate

ROUNDS = 200
LEAST_OF_BEST = 0.97
# Of fewer cycles an interval says nothing.
LEAST_CYCLES = 3


@dataclass(frozen=True)
class Recovery:
    """How auto did after a change. The first phase counts as one: a new gateway knows nothing."""

    phase: int
    best: str
    """The fastest of the others once auto had its rounds; empty if the phase was too short."""
    ratio: Estimate | None
    """Auto against the best, from then on."""
    speeds: dict[str, float]
    """Of every arm, then, in times of plain."""
    rounds: float | None
    """After so many rounds auto was fast enough to the end of the phase; None: never."""

    def as_json(self) -> dict[str, Any]:
        """The best, auto against it, and the rounds that took."""
        return {
            "phase": self.phase,
            "best": self.best,
            **(self.ratio.as_json("auto_over_best") if self.ratio else {}),
            "over_plain": {arm: round(speed, 4) for arm, speed in self.speeds.items()},
            "rounds_to_recover": self.rounds,
        }


def recovery(cycles: Sequence[Cycle], phase: int) -> Recovery:
    """Judge the cycles of one phase."""
    late = settled(cycles)
    if len(late) < LEAST_CYCLES:
        return Recovery(phase, "", None, {}, None)
    speeds = {arm: ratio_of(late, arm, "plain").value for arm in late[0].runs}
    best = max((arm for arm in speeds if arm != "auto"), key=speeds.__getitem__)
    ratio = ratio_of(late, "auto", best)
    return Recovery(phase, best, ratio, speeds, _rounds_to_recover(cycles, best))


def settled(cycles: Sequence[Cycle]) -> list[Cycle]:
    """Return the cycles of a phase in which auto had had its rounds."""
    begun = rounds_before(cycles)
    return [cycle for cycle, rounds in zip(cycles, begun, strict=True) if rounds >= ROUNDS]


def rounds_before(cycles: Sequence[Cycle]) -> list[float]:
    """Return how many rounds auto had had when each cycle began."""
    begun = [0.0]
    for cycle in cycles:
        begun.append(begun[-1] + cycle.runs["auto"].rounds)
    return begun[:-1]


def _rounds_to_recover(cycles: Sequence[Cycle], best: str) -> float | None:
    for first, rounds in enumerate(rounds_before(cycles)[: 1 - LEAST_CYCLES]):
        if ratio_of(cycles[first:], "auto", best).value >= LEAST_OF_BEST:
            return round(rounds, 1)
    return None
