"""What cannot be measured is refused before anything is started; a phase has cycles enough."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.adversity.run import AdversityOptions, Measurement
from benchmarks.adversity.scenario import SCENARIO_NAMES, RowCost
from slipstream.generate import Prompt
from tests.benchmarks.adversity.made_cycles import cycle


def options(**changed) -> AdversityOptions:
    return AdversityOptions(Path("model"), ("ngram",), (Prompt("a prompt", "chat"),), **changed)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"names": ("quality", "earthquake")}, "earthquake"),
        ({"settings": ("3x1",)}, "'3x1'"),
        ({"settings": ()}, "at least one"),
    ],
)
def test_a_mistake_is_named(changed, named):
    with pytest.raises(ValueError, match=named):
        options(**changed)


def test_all_is_measured_unless_somebody_says_otherwise():
    assert options().names == SCENARIO_NAMES
    assert [arm.name for arm in options().arms] == ["plain", "1x1x2", "3x1x4", "5x1x6", "auto"]


class FakeStage:
    """Notes what it is made to be."""

    def __init__(self):
        self.entered = []

    def enter(self, phase):
        self.entered.append(phase.label)


class FakeTimeline:
    """Cycles in which auto takes two seconds."""

    def __init__(self, stage):
        self._stage = stage
        self.cycles = []

    async def measure_row_cost(self):
        return RowCost(10_000, 100)

    async def cycle(self, phase, sessions):
        self.cycles.append((self._stage.entered[-1], sessions))
        return cycle(phase, auto=50, plain=50)


@pytest.mark.parametrize(("seconds", "expected"), [(0.1, 7), (19, 10)])
def test_a_phase_lasts_as_long_as_wanted_and_until_it_can_be_judged(seconds, expected):
    """Four cycles of 50 rounds and three to judge by. The warm-up is no part of the first phase."""
    stage = FakeStage()
    measurement = Measurement(stage, None, options(seconds=seconds), str)
    measurement._timeline = timeline = FakeTimeline(stage)

    found = asyncio.run(measurement.run("load"))

    phases = [cycle.phase for cycle in found.cycles]
    assert phases == sorted([0, 1, 2] * expected)
    assert timeline.cycles[1:] == [
        *[("1 session", 1)] * expected,
        *[("32 sessions", 32)] * expected,
        *[("1 session again", 1)] * expected,
    ]
    assert timeline.cycles[0] == ("1 session", 1)
    assert stage.entered[0] == "calibration"
