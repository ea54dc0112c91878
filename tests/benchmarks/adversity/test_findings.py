"""What is reported is what was judged: verdicts, tables, every cycle, a picture."""

from __future__ import annotations

import json

import pytest

from benchmarks.adversity.curve import changes, curve, middles, plot
from benchmarks.adversity.findings import Findings, markdown, report
from benchmarks.adversity.ratio import Verdict
from benchmarks.adversity.scenario import RowCost, scenarios
from benchmarks.machine import describe
from tests.benchmarks.adversity.made_cycles import cycle

COST = RowCost(10_000, 100)


def findings(rate_when_disturbed: float) -> Findings:
    """Three phases of 60 s of auto: fast, as given, fast again."""
    cycles = [cycle(0, auto=50, plain=40)] * 30
    cycles += [cycle(1, auto=rate_when_disturbed, plain=40)] * 30
    cycles += [cycle(2, auto=50, plain=40)] * 30
    return Findings.of(scenarios(COST)["quality"], COST, cycles)


def page(all_findings) -> str:
    return markdown(all_findings, report(all_findings, {"machine": describe(None)}))


def test_auto_that_keeps_to_plain_passes():
    found = findings(40)

    assert (found.never_slower, found.recovers) == (Verdict.HOLDS, Verdict.HOLDS)
    assert not found.failed


def test_auto_that_loses_while_something_is_wrong_fails():
    """The negative control. The worst window lies in the second phase."""
    found = findings(30)

    assert (found.never_slower, found.recovers) == (Verdict.FAILS, Verdict.FAILS)
    assert found.failed
    assert found.worst is not None
    assert found.worst.ratio.value == pytest.approx(0.75)
    assert found.worst.begin_s >= 60


def test_a_report_is_json_with_every_cycle():
    told = json.loads(json.dumps(report([findings(30)], {"seed": 3})))

    assert told["seed"] == 3
    (scenario,) = told["scenarios"]
    assert scenario["never_slower_than_plain"]["verdict"] == "fails"
    assert [one["best"] for one in scenario["recovers"]["changes"]] == ["plain"] * 3
    assert len(scenario["cycles"]) == 90


def test_tables_have_a_line_a_scenario_and_a_line_a_phase():
    *_, windows_table, phases_table = page([findings(30), findings(40)]).strip().split("\n\n")

    assert len(windows_table.splitlines()) == 2 + 2
    assert len(phases_table.splitlines()) == 2 + 6
    assert "| quality | 0.750 (0.750–0.750) | fails |" in windows_table


def test_a_timeline_without_a_window_says_so():
    short = Findings.of(
        scenarios(COST)["quality"], COST, [cycle(n, auto=50, plain=50) for n in range(3)]
    )

    assert (short.worst, short.never_slower) == (None, Verdict.UNMEASURED)
    assert "not measured" in page([short])


def test_a_curve_is_in_times_of_plain_and_on_autos_clock():
    cycles = [cycle(0, auto=50, plain=100)] * 3 + [cycle(1, auto=100, plain=50)] * 3

    assert curve(cycles[:3], "auto") == pytest.approx([0.5] * 3)
    assert curve(cycles[:3], "plain") == pytest.approx([1] * 3)
    assert changes(cycles, 2) == [0, 6]
    assert middles(cycles[3:], 6) == pytest.approx([6.5, 7.5, 8.5])


def test_a_picture_is_drawn(tmp_path):
    plot(findings(30), tmp_path / "quality.png")

    assert (tmp_path / "quality.png").read_bytes().startswith(b"\x89PNG")
