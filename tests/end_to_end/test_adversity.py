"""The adversity benchmark on the tiny model: what goes wrong does, and nothing changes a text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from benchmarks.adversity.disturbance import Disturbance
from benchmarks.adversity.run import AdversityOptions, measure, write
from benchmarks.adversity.scenario import Phase
from benchmarks.adversity.stage import Stage, open_stage
from benchmarks.adversity.timeline import requests_of
from benchmarks.arms import SIX_TASKS, Arm, parse_plan
from benchmarks.machine import describe
from slipstream.client import Client, Completion
from slipstream.generate import read_prompts

SETTING = "3x1x4"
PROMPTS = read_prompts(None, SIX_TASKS)[:4]


@pytest.fixture(scope="module")
def stage(tiny_target) -> Iterator[Stage]:
    with open_stage(tiny_target, ("ngram",), "auto") as opened:
        yield opened


def answer(stage: Stage, disturbance: Disturbance) -> Completion:
    """Answer with a fixed setting while something is wrong."""
    stage.enter(Phase("wrong", disturbance))
    (request,) = requests_of(Arm.fixed(parse_plan(SETTING)), PROMPTS[:1])
    with Client(stage.stack.addresses.gateway) as client:
        return client.complete(request, timeout_s=120)


def test_dear_rows_take_and_tell_their_time(stage):
    """The target's own timings hold at least 3 ms for every row after a round's first."""
    answered = answer(stage, Disturbance(extra_row_us=3000, random_drafts=True))

    stats = answered.finish.speculation
    assert stats.drafted > stats.rounds
    assert stats.verify.forward_us >= 3000 * stats.drafted
    assert stats.decode_us >= stats.verify.forward_us


def test_a_slow_drafter_takes_and_tells_its_time(stage):
    """Every tree that was verified had been held back for 4 ms."""
    answered = answer(stage, Disturbance(draft_delay_ms=4, random_drafts=True))

    stats = answered.finish.speculation
    in_time = stats.rounds - stats.missed
    assert stats.draft.grow_us >= 4000 * (in_time - 1)
    assert stats.decode_us >= 4000 * (in_time - 1)


def test_random_drafts_are_many_and_wrong(stage):
    """As usual prompt lookup seldom finds anything here; the text is the same."""
    usual = answer(stage, Disturbance())
    hurt = answer(stage, Disturbance(random_drafts=True))

    stats = hurt.finish.speculation
    assert stats.drafted >= 2 * (stats.rounds - stats.missed) - 3
    assert stats.accepted < 0.1 * stats.drafted
    assert usual.finish.speculation.drafted < stats.drafted / 2
    assert hurt.token_ids == usual.token_ids


@pytest.mark.slow
@pytest.mark.parametrize("name", ["quality", "gone"])
def test_a_scenario_is_measured_and_written_down(stage, tiny_target, tmp_path, name):
    """All phases, all arms; the drafter that was killed drafts again in the end."""
    options = AdversityOptions(
        tiny_target, ("ngram",), PROMPTS, (name,), (SETTING,), seconds=0.1, window_s=0.2
    )

    found = asyncio.run(measure(stage, name, options, print))
    write([found], options.facts() | {"machine": describe(None)}, tmp_path)

    told = json.loads((tmp_path / "adversity.json").read_text())["scenarios"][0]
    assert {cycle["phase"] for cycle in told["cycles"]} == {0, 1, 2}
    assert all(cycle["runs"].keys() == {"plain", SETTING, "auto"} for cycle in told["cycles"])
    assert told["never_slower_than_plain"]["windows"]
    assert name in (tmp_path / "adversity.md").read_text()
    assert (tmp_path / f"{name}.png").stat().st_size
    assert answer(stage, Disturbance(random_drafts=True)).finish.speculation.drafted > 0
