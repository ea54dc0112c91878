"""What the check for a device has found is kept, whatever the next case does."""

import json
from types import SimpleNamespace

import pytest
import torch

from benchmarks.gpu_check import __main__ as check
from benchmarks.gpu_check import steps


def case(name, raises=None):
    def checked():
        if raises is not None:
            raise raises
        return 0.5

    return SimpleNamespace(name=name, checked=checked, launch=lambda: None, num_bytes=8)


def kind(name, *cases):
    """A module of cases; an error among them is raised where the next one is made."""

    def made(sizes, device):
        for one in cases:
            if isinstance(one, Exception):
                raise one
            yield one

    return SimpleNamespace(__name__=f"package.{name}", cases=made)


class FakeClock:
    bytes_per_s = 1e12
    capture = None

    def seconds(self, launch):
        return 1e-6


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Check some kinds of cases on a device that is none; return the exit code and the report."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "fake")
    monkeypatch.setattr(check.Clock, "on", lambda _: FakeClock())
    monkeypatch.setattr(check, "drafters", lambda *_: [])
    monkeypatch.setattr(steps, "models", lambda *_: [])
    path = tmp_path / "found.json"

    def checked(*kinds):
        monkeypatch.setattr(check, "_KINDS", kinds)
        return check.main(["--json", str(path)]), json.loads(path.read_text())

    checked.path = path
    return checked


def told(findings):
    return {found["name"]: found.get("reason", found["right"]) for found in findings}


def test_what_is_right_is_told_with_its_times(run, capsys):
    code, report = run(kind("some", case("one"), case("two")))
    assert (code, report["device"], report["steps"]) == (0, "fake", [])
    assert told(report["kernels"]) == {"one": True, "two": True}
    assert report["kernels"][0]["microseconds"] == 1
    assert capsys.readouterr().out.count("right") == 2


def test_a_case_that_raises_is_wrong_and_the_others_go_on(run, capsys):
    lost = RuntimeError("CUDA error: out of memory\nCompile with ...")
    code, report = run(
        kind("some", case("one"), case("two", lost), case("three")),
        kind("large_cases", case("four"), ValueError("too large"), case("five")),
        kind("others", case("six")),
    )
    assert code == 1
    assert told(report["kernels"]) == {
        "one": True,
        "two": f"RuntimeError: {lost}",
        "three": True,
        "four": True,
        "large_cases": "ValueError: too large",
        "six": True,
    }
    assert "WRONG  RuntimeError: CUDA error: out of memory\n" in capsys.readouterr().out


def test_a_model_or_a_drafter_that_cannot_be_made_is_wrong_and_the_others_go_on(run, monkeypatch):
    def failing():
        raise RuntimeError("no room")

    measured = {"name": "second", "right": True, "launched_ms": 1, "replayed_ms": 1}
    measured |= {"launches": 2, "graphs": 1, "weights_gb_per_s": 3}
    monkeypatch.setattr(steps, "models", lambda *_: [("first", failing), ("second", None)])
    monkeypatch.setattr(
        steps, "measured", lambda make, *_: failing() if make is failing else measured
    )
    monkeypatch.setattr(check, "drafters", lambda *_: [("third", failing)])
    code, report = run(kind("some", case("one")))
    assert code == 1
    assert told(report["steps"]) == {
        "first": "RuntimeError: no room",
        "second": True,
        "drafter of third": "RuntimeError: no room",
    }


def test_what_was_found_before_somebody_stops_it_is_kept(run):
    with pytest.raises(KeyboardInterrupt):
        run(kind("some", case("one"), case("two", KeyboardInterrupt())))
    assert told(json.loads(run.path.read_text())["kernels"]) == {"one": True}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--json=nope/found.json", "is no file in a directory that is there"),
        ("--json=.", "is no file in a directory that is there"),
        ("--embedded=/nope", "holds no model"),
    ],
)
def test_what_is_named_must_be_there_before_anything_is_measured(
    option, message, monkeypatch, tmp_path, capsys
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: pytest.fail("it went on"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        check.main([option])
    assert left.value.code == 2
    assert message in capsys.readouterr().err
