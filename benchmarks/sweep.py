"""A whole grid of settings in one run, without restarting anything, and what auto made of it.

For every prompt all settings answer in a random order; auto and plain decoding do so several times,
because all others are held against them. Rates and ratios are geometric means over prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.acceptance import accept_length
from benchmarks.arms import AUTO, PLAIN, Arm, Wish
from benchmarks.grid import Grid, tree_of
from benchmarks.interleaved import Measurements, measure, shuffled
from benchmarks.intervals import Estimate, mean_of
from protos.messages import Plan
from slipstream.client import Client
from slipstream.generate import Prompt

_WHAT = "All settings of a grid, auto and plain decoding, in a random order for every prompt"
# One answer a prompt would make a reference as uncertain as what is held against it.
_ARMS_A_REFERENCE = 8


def pick(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """Return so many prompts, the first of every task, then the second of every task, and so on."""
    seen: dict[str, int] = {}
    places = []
    for prompt in prompts:
        places.append(seen.get(prompt.task, 0))
        seen[prompt.task] = places[-1] + 1
    ranked = sorted(zip(places, prompts, strict=True), key=lambda pair: pair[0])
    return [prompt for _, prompt in ranked[:count]]


def sweep(
    client: Client,
    prompts: Sequence[Prompt],
    grid: Grid,
    temperatures: Sequence[float],
    wish: Wish,
) -> dict[str, Any]:
    """Measure all settings and return the report, without the machine.

    Raises TextsDifferError; ValueError if no answer is long enough to time.
    """
    arms = [arm for temperature in temperatures for arm in arms_at(grid, temperature)]
    found = Measurements(prompts, arms, wish.simulates)
    measure(client, found, wish, repeats=1, order=_mixed)
    return report_of(found, grid, temperatures, wish)


def arms_at(grid: Grid, temperature: float) -> list[Arm]:
    """Return plain decoding, all trees of a grid and auto."""
    trees = [Arm.fixed(plan, temperature) for plan in grid.trees]
    ends = [replace(arm, temperature=temperature) for arm in (PLAIN, AUTO)]
    return [ends[0], *trees, ends[1]]


def _mixed(arms: Sequence[Arm], turn: int) -> Sequence[Arm]:
    """Return all arms in a random order, the references as often as eight others come once."""
    references = [arm for arm in arms if arm.mode != "fixed"]
    temperatures = len({arm.temperature for arm in arms})
    further = len(arms) // temperatures // _ARMS_A_REFERENCE
    return shuffled([*arms, *references * further], turn)


def report_of(
    found: Measurements, grid: Grid, temperatures: Sequence[float], wish: Wish
) -> dict[str, Any]:
    """Return the report on what was measured."""
    if not found.timed:
        raise ValueError("no prompt was answered with enough tokens to time")
    return {
        "what": _WHAT,
        "simulated": wish.simulates,
        "settings": vars(wish) | {name: list(values) for name, values in vars(grid).items()},
        "prompts": len(found.timed),
        "temperatures": [Field(found, grid, at).as_json() for at in temperatures],
    }


@dataclass(frozen=True)
class Field:
    """All arms at one temperature."""

    found: Measurements
    grid: Grid
    temperature: float

    def as_json(self) -> dict[str, Any]:
        """Return the entry of a report. Regret: the share of the best arm's speed that auto lost.

        The best of many arms was lucky, too: its rate is a little too high, and so is the regret.
        """
        best, auto = self.best, self._arm("auto")
        auto_over_best = self.ratio(auto, best)
        return {
            "temperature": self.temperature,
            "plain": self._arm_json(self._arm("plain")),
            "auto": self._arm_json(auto),
            "best": self._arm_json(best),
            **auto_over_best.as_json("auto_over_best"),
            "regret": round(1 - auto_over_best.value, 4),
            "cells": [self._cell_json(cell) for cell in self.grid.cells],
        }

    @property
    def best(self) -> Arm:
        """The fastest of all but auto: plain decoding is a setting, too."""
        arms = [arm for arm in self._arms if arm.mode != "auto"]
        return max(arms, key=lambda arm: self.rate(arm).value)

    def rate(self, arm: Arm) -> Estimate:
        """Return tokens a second."""
        return mean_of([self.found.rate(number, arm) for number in self.found.timed])

    def ratio(self, arm: Arm, other: Arm) -> Estimate:
        """Return how much faster an arm answered the same prompts than another."""
        rate = self.found.rate
        return mean_of([rate(n, arm) / rate(n, other) for n in self.found.timed])

    @property
    def _arms(self) -> list[Arm]:
        return [arm for arm in self.found.arms if arm.temperature == self.temperature]

    def _arm(self, name: str) -> Arm:
        return next(arm for arm in self._arms if arm.name == name)

    def _cell_json(self, cell: Plan) -> dict[str, Any]:
        return vars(cell) | self._arm_json(self._arm(Arm.fixed(tree_of(cell)).name))

    def _arm_json(self, arm: Arm) -> dict[str, Any]:
        return {
            "arm": arm.name,
            **self.rate(arm).as_json("tps"),
            **self.ratio(arm, self._arm("plain")).as_json("over_plain"),
            "accept_length": accept_length(self.found.of_arm(arm, self.found.timed)),
        }
