"""`slipstream bench`: every command leaves a report of all that it says it measures."""

from __future__ import annotations

import json

import pytest

from tests.end_to_end.bench import report_of, run_bench, write_prompts


@pytest.fixture
def prompts(tmp_path):
    return write_prompts(tmp_path / "prompts.jsonl")


def test_compare_reports_all_arms_by_task(tiny_stack, prompts, tmp_path):
    """The keys that scripts rely on; arms as asked for; who drafted."""
    found = report_of(
        tmp_path / "compare.json",
        *("compare", "--gateway", tiny_stack.addresses.gateway, "--prompts", prompts),
        *("--max-new-tokens", "24", "--fixed", "1x1x2", "--fixed", "3x2x6", "--drafter", "eagle"),
    )
    assert [entry["task"] for entry in found["tasks"]] == ["copy", "talk"]
    for entry in [*found["tasks"], found["overall"]]:
        low, high = entry["auto_over_plain_ci95"]
        assert 0 < low <= entry["auto_over_plain"] <= high
        assert min(entry["plain_tps"], entry["fixed_tps"], entry["auto_tps"]) > 0
        assert entry["best_fixed"] in ("1x1x2", "3x2x6")
        assert entry["accept_length"] >= 1
    arms = found["overall"]["arms"]
    assert [arm["arm"] for arm in arms] == ["plain", "1x1x2", "3x2x6", "auto"]
    assert arms[0]["drafted"] == 0
    assert arms[1]["drafters"] == ["eagle"]
    assert not found["simulated"]


def test_a_prompt_that_is_too_long_ends_the_benchmark_with_the_limit(tiny_stack, tmp_path):
    """One line, no traceback."""
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"task": "t", "prompt": "x" * 10_000}))
    done = run_bench("compare", "--gateway", tiny_stack.addresses.gateway, "--prompts", path)
    assert done.returncode != 0
    assert "INVALID_ARGUMENT" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_drafter_that_nobody_has_is_refused_before_anything_is_measured(tiny_stack, prompts):
    gateway = ("--gateway", tiny_stack.addresses.gateway, "--prompts", prompts)
    done = run_bench("compare", *gateway, "--drafter", "nobody")
    assert done.returncode == 2
    said = " ".join(done.stderr.replace("│", " ").split())
    assert "no drafter 'nobody'; known: ngram, eagle" in said


def test_a_sweep_measures_its_grid_without_a_restart(tiny_stack, prompts, tmp_path):
    """All trees once, all cells told, at two temperatures."""
    found = report_of(
        tmp_path / "sweep.json",
        *("sweep", "--gateway", tiny_stack.addresses.gateway, "--prompts", prompts),
        *("--steps", "1,3", "--top-k", "1,2", "--draft-tokens", "2,4", "--temperature", "0,0.8"),
        *("--max-new-tokens", "16", "--drafter", "eagle"),
    )
    for field in found["temperatures"]:
        assert len(field["cells"]) == 8
        assert len({cell["arm"] for cell in field["cells"]}) == 4
        assert field["regret"] == pytest.approx(1 - field["auto_over_best"], abs=1e-3)


def test_a_trace_has_spans_of_all_services(tiny_stack, tmp_path):
    """As the trace viewers read it."""
    out = tmp_path / "trace.json"
    gateway = ("--gateway", tiny_stack.addresses.gateway, "--drafter", "eagle")
    done = run_bench(
        "trace", "-p", "a b a b a b", *gateway, "--max-new-tokens", "12", "--json", out
    )
    assert done.returncode == 0, done.stderr
    events = json.loads(out.read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    spans = {(names[event["pid"]], event["name"]) for event in events if event["ph"] == "X"}
    assert {("gateway", "round"), ("target", "forward"), ("draft service", "grow")} <= spans


FORCED = ("--forced-accept-length", "2.5")


def test_a_target_forces_nothing_unless_it_was_started_for_it(tiny_stack, prompts):
    """The message names the flag."""
    gateway = ("--gateway", tiny_stack.addresses.gateway)
    done = run_bench("compare", *gateway, "--prompts", prompts, *FORCED)
    assert done.returncode != 0
    assert "--allow-forced-acceptance" in done.stderr


def test_forced_acceptance_gives_the_accept_length_of_a_drafter_that_is_never_right(
    tiny_target, tiny_stack, prompts, tmp_path
):
    """On a stack of its own. Rounds without a draft, as busy machines have them, accept none."""
    drafter = tiny_stack.config.drafters[1]
    found = report_of(
        tmp_path / "forced.json",
        *("compare", "--model", tiny_target, "--load", drafter, "--prompts", prompts),
        *("--max-new-tokens", "64", "--fixed", "4x1x5", *FORCED),
    )
    plain, fixed, _ = found["overall"]["arms"]
    assert found["simulated"]
    assert "Simulated" in (tmp_path / "forced.md").read_text()
    drafted = 1 - fixed["missed"] / fixed["rounds"]
    assert plain["accept_length"] == 1
    assert fixed["accept_length"] == pytest.approx(1 + 1.5 * drafted, abs=0.15)


@pytest.mark.slow
@pytest.mark.model
def test_load_has_ratios_and_both_curves(smollm2_stack, prompts, tmp_path):
    """The ratios want prompts that a tiny context does not hold."""
    found = report_of(
        tmp_path / "load.json",
        *("load", "--gateway", smollm2_stack.addresses.gateway, "--prompts", prompts),
        *("--repeats", "1", "--streams", "1,3", "--rates", "2", "--seconds", "2"),
    )
    assert found["throughput"]["over_1_plain"]["8 plain"]["median"] > 1
    assert {"intrusion", "prefix"} <= found.keys()
    arms = ["plain", "5x1x6", "auto"]
    points = [(point["streams"], point["arm"]) for point in found["closed_loop"]]
    assert sorted(points) == sorted((streams, arm) for streams in (1, 3) for arm in arms)
    assert sorted(point["arm"] for point in found["open_loop"]) == sorted(arms)
    assert all(point["tps"] > 0 for point in found["closed_loop"] + found["open_loop"])
