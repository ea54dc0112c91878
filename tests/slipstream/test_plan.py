"""`slipstream plan` answers in a table, JSON and a picture, and refuses what cannot be."""

import json

import pytest
from typer.testing import CliRunner

from benchmarks.simulation.presets import PRESETS
from slipstream.__main__ import app
from slipstream.plan import HARDWARE, acceptance_of, loads_of, machine_of


def run(*options):
    return CliRunner().invoke(app, ["plan", *options], env={"COLUMNS": "80"})


def test_every_preset_is_named():
    assert tuple(PRESETS) == HARDWARE


def test_a_load_is_a_line_and_all_figures_are_written(tmp_path):
    ran = run("--sessions", "8,16", "--json", str(tmp_path / "f"), "--png", str(tmp_path / "p.png"))
    assert ran.exit_code == 0, ran.output
    lines = [line.split() for line in ran.output.splitlines()]
    speeds = {words[0]: float(words[1]) for words in lines if words and words[0] in ("8", "16")}
    written = json.loads((tmp_path / "f").read_text())
    assert speeds == {
        str(one["sessions"]): round(one["plain"]["tokens_per_second"], 1) for one in written
    }
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--hardware", "abacus"], "abacus"),
        (["--sessions", "0"], "[1, 256]"),
        (["--accept", "0.5,0.6"], "(0.5, 0.6)"),
        (["--accept-length", "9"], "[1, 4)"),
        (["--accept", "0.5", "--accept-length", "2"], "not both"),
        (["--plain", "5000"], "5000"),
        (["--sessions", "1,,4"], "'1,,4'"),
        (["--accept", "0.5;0.4"], "'0.5;0.4'"),
        (["--json", "/dev/null/f.json"], "/dev/null/f.json"),
    ],
)
def test_what_cannot_be_is_refused_with_the_value(options, said):
    ran = run(*options)
    assert ran.exit_code == 2
    assert said in " ".join(ran.output.split())


def test_what_is_known_of_the_users_machine_replaces_the_preset():
    machine = machine_of("dense-70b", 40.0, 3.0, 2.0, 10.0)
    assert machine.plain_s(1) == pytest.approx(1 / 40)
    assert (machine.drafter.step_ms, machine.network.rtt_ms) == (3.0, 2.0)


def test_a_drafters_quality_is_told_by_depth_or_by_its_accept_length():
    assert acceptance_of("0.8,0.5", None, 3).survival == (0.8, 0.5)
    assert acceptance_of("", 2.1, 3).accept_length(3) == pytest.approx(2.1)
    assert acceptance_of("", None, 3).accept_length(2) == pytest.approx(2.43)


def test_loads_are_a_list():
    assert loads_of("1,4,16") == [1, 4, 16]
