"""The check for a device finds every kernel right in the interpreter, and planted faults wrong."""

import dataclasses
import subprocess
import sys

import pytest
import torch

from benchmarks.gpu_check import kimi_pair, steps
from benchmarks.gpu_check.__main__ import all_cases, main
from benchmarks.gpu_check.case import SMALL, excess_of, excess_of_equal
from benchmarks.gpu_check.made_up import LlamaShape
from benchmarks.gpu_check.steps import StepLoad
from protos.messages import Verdict
from tests.kernels.gpu.proofs.recorded_step import recorded

CPU = torch.device("cpu")
CASES = [case for _, cases in all_cases(SMALL, CPU) for case in cases]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_kernel_is_right_and_one_that_does_nothing_is_not(case):
    assert not dataclasses.replace(case, launch=lambda: None).checked() <= 1
    assert case.checked() <= 1


def tiny_llama(load):
    return LlamaShape("tiny", 32, 64, 1, 2, 1, 16, 150).made_up(load.slots, CPU)


def tiny_kimi(load):
    sizes = SMALL._replace(hidden=64, experts=1, vocabulary=150)
    return kimi_pair.made_up(sizes, load.slots, load.rows, CPU)


@pytest.mark.parametrize(("made_up", "context"), [(tiny_llama, 5), (tiny_kimi, 0)])
def test_a_step_is_the_same_launched_and_replayed(monkeypatch, made_up, context):
    """Experts take an interpreter long: they have no context to compute."""
    load = StepLoad(sessions=1, context=context, drafts=1)
    monkeypatch.setattr(steps, "_REPEATS", 1)
    measured = steps.measured(lambda: made_up(load), load, CPU, recorded)
    assert measured["right"]
    assert measured["graphs"] == 1 < measured["launches"]


def test_steps_that_differ_in_a_bit_are_not_the_same():
    verdict = Verdict(committed_len=3, path=(1,), tokens=(7, 8), logprobs=(-1.0, -2.0))
    taps_KX = torch.ones(2, 3)
    other_KX = taps_KX.nextafter(torch.zeros(2, 3))
    assert steps.alike((verdict, taps_KX), (verdict, taps_KX.clone()))
    assert not steps.alike((verdict, taps_KX), (verdict, other_KX))
    for changed in ({"path": (2,)}, {"tokens": (7, 9)}, {"logprobs": (-1.0, -2.5)}):
        other = dataclasses.replace(verdict, **changed)
        assert not steps.alike((verdict, taps_KX), (other, taps_KX))


def test_what_is_no_number_is_wrong():
    nan = torch.tensor([float("nan")])
    assert excess_of(nan, torch.zeros(1), torch.ones(1)) == float("inf")
    assert excess_of_equal(nan, nan) == float("inf")


def test_without_a_device_nothing_is_checked_and_that_is_said(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 2
    assert "no GPU" in capsys.readouterr().err


def test_it_needs_no_more_than_it_says():
    """A machine with a GPU may be bare: what services need besides is not imported."""
    besides = ("aiohttp", "grpc", "pydantic", "rich", "structlog", "transformers", "typer")
    blocked = "".join(f"sys.modules[{name!r}] = None\n" for name in besides)
    code = f"import sys\n{blocked}import benchmarks.gpu_check.__main__"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
