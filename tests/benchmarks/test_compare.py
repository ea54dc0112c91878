"""The comparison: ratios are paired by prompt, the best fixed arm is named, and it can be read."""

from __future__ import annotations

import json

import pytest

from benchmarks import compare_report
from benchmarks.arms import AUTO, PLAIN, Arm, Wish
from benchmarks.compare import _rounds_by_plan, report_of
from benchmarks.interleaved import Measurements
from benchmarks.machine import describe
from benchmarks.reports import write
from protos import gateway_pb2 as pb
from protos.messages import DraftTimings, Plan, VerifyTimings
from slipstream.generate import Prompt
from tests.benchmarks.measured import round_of, taken

SHORT, LONG = Arm.fixed(Plan(1, 1, 2)), Arm.fixed(Plan(5, 1, 6))
ARMS = [PLAIN, SHORT, LONG, AUTO]
TOKENS = list(range(101))
ROUND = round_of(10_000, DraftTimings(0, 1000, 0), VerifyTimings(0, 5000, 0, 2))


def report(*, simulated: bool = False):
    """Two tasks of two prompts: chat, where 5x1x6 loses, and copy, where it wins."""
    prompts = [Prompt("a", "chat"), Prompt("b", "chat"), Prompt("c", "copy"), Prompt("d", "copy")]
    found = Measurements(prompts, ARMS, simulated)
    for number, prompt in enumerate(prompts):
        slow = 1.0 + number
        long = 2.0 if prompt.task == "chat" else 0.25
        for arm, factor in ((PLAIN, 1.0), (SHORT, 0.8), (LONG, long), (AUTO, min(0.8, long))):
            accepted = () if arm is PLAIN else (3, 1)
            answer = taken(TOKENS, slow * factor, accepted_by_position=accepted, rounds=[ROUND] * 4)
            found.add(number, arm, answer)
    wish = Wish(128, forced_accept_length=2.0 if simulated else None)
    return report_of(found, wish, 1) | {"machine": describe(None)}


def test_every_task_and_the_whole_have_an_entry():
    found = report()
    assert [entry["task"] for entry in found["tasks"]] == ["chat", "copy"]
    assert [entry["prompts"] for entry in found["tasks"]] == [2, 2]
    assert found["overall"]["prompts"] == 4


def test_ratios_are_of_the_same_prompt_however_unlike_the_prompts_are():
    """Every prompt of a task is faster by the same factor, so there is no doubt."""
    chat, copy = report()["tasks"]
    assert chat["auto_over_plain"] == pytest.approx(1.25)
    assert chat["auto_over_plain_ci95"] == pytest.approx([1.25, 1.25])
    assert copy["auto_over_plain"] == pytest.approx(4)


def test_the_best_fixed_arm_is_named_by_task():
    chat, copy = report()["tasks"]
    assert (chat["best_fixed"], copy["best_fixed"]) == ("1x1x2", "5x1x6")
    assert chat["auto_over_best_fixed"] == pytest.approx(1)
    assert copy["fixed_tps"] == copy["auto_tps"] == pytest.approx(4 * copy["plain_tps"], rel=1e-3)


def test_accept_length_counts_the_bonus_token():
    chat = report()["tasks"][0]
    assert chat["accept_length"] == 1 + 4 / 4
    plain, short, *_ = chat["arms"]
    assert (plain["accept_length"], plain["accepted_by_position"]) == (1, [])
    assert short["accepted_by_position"] == [0.75, 0.25]


def test_the_plans_in_use_are_told_as_arms_are_named():
    stats = pb.SpeculationStats(
        plans=[
            pb.PlanUse(plan=Plan(0, 1, 64).to_proto(), rounds=2),
            pb.PlanUse(plan=Plan(3, 1, 4).to_proto(), rounds=3),
        ]
    )
    assert _rounds_by_plan([stats, stats]) == {"3x1x4": 6, "0x1x1": 4}


def test_a_rounds_parts_are_told_for_every_arm():
    for arm in report()["overall"]["arms"]:
        assert sum(arm["round_ms"].values()) == pytest.approx(10)


def test_answers_too_short_to_time_are_named_and_left_out():
    found = Measurements([Prompt("a", "t"), Prompt("b", "t")], ARMS, simulated=False)
    for arm in ARMS:
        found.add(0, arm, taken([1, 2], 1))
        found.add(1, arm, taken(TOKENS, 1))
    told = report_of(found, Wish(128), 1)
    assert (told["too_short"], told["overall"]["prompts"]) == ([1], 1)


def test_nothing_to_time_is_an_error():
    found = Measurements([Prompt("a", "t")], ARMS, simulated=False)
    for arm in ARMS:
        found.add(0, arm, taken([1], 1))
    with pytest.raises(ValueError, match="enough tokens"):
        report_of(found, Wish(128), 1)


@pytest.mark.parametrize("simulated", [False, True])
def test_a_report_is_written_as_json_table_and_picture(tmp_path, simulated):
    """A simulation says so in each."""
    found = report(simulated=simulated)
    page = compare_report.markdown(found)
    paths = write(found, compare_report, tmp_path / "new" / "compare.json")
    assert [path.name for path in paths] == ["compare.json", "compare.md", "compare.png"]
    assert json.loads(paths[0].read_text()) == found
    assert paths[2].read_bytes().startswith(b"\x89PNG")
    assert ("Simulated" in page) is simulated is found["simulated"]


def test_a_page_has_a_line_for_every_task():
    page = compare_report.markdown(report())
    assert page.count("| chat | 2 |") == 1
    assert page.count("| all | 4 |") == 1
