"""All of it: for each scenario a fresh stack, its phases one after the other, then the verdicts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.adversity.curve import plot
from benchmarks.adversity.cycle import Cycle, seconds_of
from benchmarks.adversity.findings import Findings, markdown, report
from benchmarks.adversity.recovery import LEAST_CYCLES, settled
from benchmarks.adversity.scenario import SCENARIO_NAMES, Phase, Scenario, scenarios
from benchmarks.adversity.stage import Stage, open_stage
from benchmarks.adversity.timeline import RANDOM_DRAFTS, Clients, Timeline
from benchmarks.adversity.window import WINDOW_S
from benchmarks.arms import AUTO, PLAIN, Arm, fixed_arms, parse_plan
from benchmarks.machine import describe
from slipstream.client import AsyncClient
from slipstream.generate import Prompt

DEFAULT_SETTINGS = ("1x1x2", "3x1x4", "5x1x6")
Tell = Callable[[str], object]


@dataclass(frozen=True)
class AdversityOptions:
    """What is measured on what, and for how long.

    `seconds` are of auto's decoding, in each phase; the other arms take as long again each.
    """

    model: Path
    drafters: Sequence[str]
    prompts: Sequence[Prompt]
    names: Sequence[str] = SCENARIO_NAMES
    settings: Sequence[str] = DEFAULT_SETTINGS
    seconds: float = 45.0
    window_s: float = WINDOW_S
    seed: int = 0
    weights: str = "auto"

    def __post_init__(self) -> None:
        if unknown := set(self.names) - set(SCENARIO_NAMES):
            known = ", ".join(SCENARIO_NAMES)
            raise ValueError(f"scenarios are {known}; got {', '.join(sorted(unknown))}")
        if not self.settings or not self.prompts:
            raise ValueError("at least one fixed setting and one prompt are needed, got none")
        self.arms  # noqa: B018

    @property
    def arms(self) -> tuple[Arm, ...]:
        """Plain, the fixed settings, auto. Raises ValueError for a setting that is none."""
        return (PLAIN, *fixed_arms([parse_plan(text) for text in self.settings]), AUTO)

    def facts(self) -> dict[str, Any]:
        """Say what was measured, for the report."""
        left_out = ("model", "prompts", "names")
        kept = {name: value for name, value in asdict(self).items() if name not in left_out}
        return {"model": self.model.name, "num_prompts": len(self.prompts), **kept}


class Measurement:
    """One scenario on one stage."""

    def __init__(
        self, stage: Stage, clients: Clients, options: AdversityOptions, tell: Tell
    ) -> None:
        self._stage = stage
        self._timeline = Timeline(clients, options.arms, options.prompts, options.seed)
        self._options = options
        self._tell = tell

    async def run(self, name: str) -> Findings:
        """Calibrate, warm up, and go through the phases."""
        self._stage.enter(RANDOM_DRAFTS)
        cost = await self._timeline.measure_row_cost()
        scenario = scenarios(cost)[name]
        await self._warm_up(scenario)
        cycles = [
            cycle
            for number, phase in enumerate(scenario.phases)
            for cycle in await self._phase(number, phase)
        ]
        return Findings.of(scenario, cost, cycles, self._options.window_s)

    async def _warm_up(self, scenario: Scenario) -> None:
        self._stage.enter(scenario.phases[0])
        await self._timeline.cycle(0, scenario.phases[0].sessions)

    async def _phase(self, number: int, phase: Phase) -> list[Cycle]:
        self._tell(f"{phase.label} ...")
        self._stage.enter(phase)
        cycles: list[Cycle] = []
        while self._is_short(cycles):
            cycles.append(await self._timeline.cycle(number, phase.sessions))
        return cycles

    def _is_short(self, cycles: Sequence[Cycle]) -> bool:
        """Whether a phase must go on: for as long as is wanted, or until it can be judged."""
        is_judged = len(settled(cycles)) >= LEAST_CYCLES
        return not is_judged or seconds_of(cycles, "auto") < self._options.seconds


async def measure(stage: Stage, name: str, options: AdversityOptions, tell: Tell) -> Findings:
    """Measure one scenario on a stage that was just opened."""
    others = stage.stack.addresses.gateway
    async with AsyncClient(stage.auto_gateway) as auto, AsyncClient(others) as client:
        return await Measurement(stage, Clients(auto, client), options, tell).run(name)


def run(options: AdversityOptions, out: Path, tell: Tell) -> list[Findings]:
    """Measure all scenarios that are wanted; write each down as soon as it is done.

    Raises TextsDifferError if an arm changes a text.
    """
    out.mkdir(parents=True, exist_ok=True)
    found: list[Findings] = []
    for name in options.names:
        tell(f"scenario {name}")
        with open_stage(options.model, options.drafters, options.weights) as stage:
            facts = options.facts() | {"machine": describe(stage.stack.addresses.target)}
            found.append(asyncio.run(measure(stage, name, options, tell)))
        write(found, facts, out)
    return found


def write(found: Sequence[Findings], facts: Mapping[str, Any], out: Path) -> None:
    """Write the report and the tables of all so far, and the newest scenario's picture."""
    told = report(found, facts)
    (out / "adversity.json").write_text(json.dumps(told, indent=1) + "\n")
    (out / "adversity.md").write_text(markdown(found, told))
    plot(found[-1], out / f"{found[-1].scenario.name}.png")
