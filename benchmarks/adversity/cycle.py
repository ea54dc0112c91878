"""What was measured: a timeline of cycles, each with one run of every arm on the same prompts.

Pure: knows neither services nor clocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Run:
    """One arm's part of a cycle: tokens that were decoded, in what time, in how many rounds.

    Of several sessions at once: the tokens of all, and the rounds of one on average.
    """

    tokens: int
    seconds: float
    rounds: float

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds


@dataclass(frozen=True)
class Cycle:
    """One turn of all arms, in the phase of that number."""

    phase: int
    runs: Mapping[str, Run]

    def as_json(self) -> dict[str, Any]:
        """Tokens, seconds and rounds of each arm."""
        runs = {
            arm: [run.tokens, round(run.seconds, 4), round(run.rounds, 1)]
            for arm, run in self.runs.items()
        }
        return {"phase": self.phase, "runs": runs}


def seconds_of(cycles: Sequence[Cycle], arm: str) -> float:
    """Return how long an arm decoded."""
    return sum(cycle.runs[arm].seconds for cycle in cycles)


def cycles_of(cycles: Sequence[Cycle], phase: int) -> list[Cycle]:
    """Return those of a phase."""
    return [cycle for cycle in cycles if cycle.phase == phase]
