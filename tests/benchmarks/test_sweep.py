"""The sweep finds the best setting, and says what auto lost against it."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from benchmarks import sweep_report
from benchmarks.arms import Wish
from benchmarks.grid import Grid
from benchmarks.interleaved import Measurements
from benchmarks.machine import describe
from benchmarks.reports import write
from benchmarks.sweep import _mixed, arms_at, pick, report_of
from slipstream.generate import Prompt
from tests.benchmarks.measured import taken

GRID = Grid([1, 2, 3], [1, 2], [2, 4])
PROMPTS = [Prompt("a", "t"), Prompt("b", "t"), Prompt("c", "u")]
TOKENS = list(range(31))


def report(temperatures=(0.0,), best: str = "2x1x3", factor: float = 0.5):
    """All settings take as long as plain decoding, one is faster, auto is halfway."""
    arms = [arm for temperature in temperatures for arm in arms_at(GRID, temperature)]
    found = Measurements(PROMPTS, arms, simulated=False)
    for number in range(len(PROMPTS)):
        for arm in arms:
            fast = {best: factor, "auto": (1 + factor) / 2}.get(arm.name, 1.0)
            found.add(number, arm, taken(TOKENS, (1 + number) * fast, accepted_by_position=(1,)))
    return report_of(found, GRID, temperatures, Wish(32)) | {"machine": describe(None)}


def test_the_best_setting_and_the_regret_of_auto():
    (field,) = report()["temperatures"]
    assert field["best"]["arm"] == "2x1x3"
    assert field["best"]["over_plain"] == pytest.approx(2)
    assert field["auto"]["over_plain"] == pytest.approx(4 / 3, rel=1e-3)
    assert field["regret"] == pytest.approx(1 / 3, rel=1e-3)


def test_plain_decoding_may_be_the_best_setting():
    """Where every draft costs more than it brings."""
    (field,) = report(best="plain", factor=0.5)["temperatures"]
    assert field["best"]["arm"] == "plain"


def test_every_cell_of_the_grid_is_told_by_the_tree_it_asks_for():
    (field,) = report()["temperatures"]
    cells = {(c["steps"], c["top_k"], c["draft_tokens"]): c for c in field["cells"]}
    assert len(cells) == 12
    assert cells[3, 1, 2]["arm"] == cells[1, 2, 2]["arm"] == "1x1x2"
    assert cells[2, 1, 4]["over_plain"] == pytest.approx(2)


def test_temperatures_are_apart():
    fields = report((0.0, 0.7))["temperatures"]
    assert [field["temperature"] for field in fields] == [0.0, 0.7]
    assert [field["best"]["arm"] for field in fields] == ["2x1x3"] * 2


def test_references_are_measured_as_often_as_eight_settings_come_once():
    arms = [*arms_at(GRID, 0.0), *arms_at(GRID, 1.0)]
    counts = Counter(_mixed(arms, 0))
    often = 1 + len(arms) // 2 // 8
    assert {counts[arm] for arm in arms if arm.mode != "fixed"} == {often}
    assert {counts[arm] for arm in arms if arm.mode == "fixed"} == {1}


def test_prompts_are_picked_from_all_tasks_in_turn():
    prompts = [Prompt(str(i), task) for i, task in enumerate("aaabbc")]
    assert [prompt.text for prompt in pick(prompts, 4)] == ["0", "3", "5", "1"]
    assert len(pick(prompts, 99)) == 6


def test_a_report_is_written_as_json_table_and_picture(tmp_path):
    found = report((0.0, 0.7))
    page = sweep_report.markdown(found)
    paths = write(found, sweep_report, tmp_path / "sweep.json")
    assert json.loads(paths[0].read_text()) == found
    assert paths[2].read_bytes().startswith(b"\x89PNG")
    assert page.count("| 2x1x3 | ") == 4  # the best of two temperatures, in the list of each
