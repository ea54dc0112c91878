"""What goes wrong when: a scenario is phases, each with what is wrong in it."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.adversity.disturbance import Disturbance

# What a further row of a dear target costs at least, in times of a plain step: what a draft token
# costs Kimi-K2 on eight GPUs (fitted to SpecForge's public SpecBundle rounds). On a small CPU a row
# is nearly free, and three times nothing would be no adversity.
_LEAST_ROW_COST = 0.155
_TIMES_DEARER = 3


@dataclass(frozen=True)
class Phase:
    """A stretch of the timeline in which nothing changes."""

    label: str
    disturbance: Disturbance = field(default_factory=Disturbance)
    sessions: int = 1
    """Requests that are answered at once."""
    drafter_lives: bool = True


@dataclass(frozen=True)
class Scenario:
    """Phases, one after the other."""

    name: str
    title: str
    phases: tuple[Phase, ...]


@dataclass(frozen=True)
class RowCost:
    """What a forward of the target takes, measured: one row, and each further one."""

    step_us: float
    row_us: float

    @property
    def extra_us(self) -> float:
        """What makes each further row three times as dear, or dear enough to notice."""
        dear_us = max(_TIMES_DEARER * self.row_us, _LEAST_ROW_COST * self.step_us)
        return dear_us - self.row_us


def scenarios(cost: RowCost) -> dict[str, Scenario]:
    """Return all scenarios by name, for a target of that cost."""
    usual = Phase("as usual")
    well = Phase("well again")
    slower = [Phase(f"{ms} ms", Disturbance(draft_delay_ms=ms)) for ms in (5, 20, 100)]
    dear = Phase("dear rows", Disturbance(extra_row_us=cost.extra_us))
    found = (
        Scenario(
            "quality",
            "The drafter's guesses become random",
            (usual, Phase("random drafts", Disturbance(random_drafts=True)), well),
        ),
        Scenario("delay", "Drafts come later", (usual, *slower, well)),
        Scenario("cost", "Every further row of a verification is dear", (usual, dear, well)),
        Scenario(
            "load",
            "One session, thirty-two, one",
            (Phase("1 session"), Phase("32 sessions", sessions=32), Phase("1 session again")),
        ),
        Scenario(
            "gone",
            "The drafter is killed, and comes back",
            (usual, Phase("no drafter", drafter_lives=False), Phase("drafter back")),
        ),
    )
    return {scenario.name: scenario for scenario in found}


SCENARIO_NAMES = tuple(scenarios(RowCost(0, 0)))
