"""The check for a device finds every kernel right in the interpreter, and planted faults wrong."""

import dataclasses

import pytest
import torch

from benchmarks.gpu_check.__main__ import all_cases, main
from benchmarks.gpu_check.case import SMALL, excess_of, excess_of_equal

CPU = torch.device("cpu")
CASES = list(all_cases(SMALL, CPU))


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_kernel_is_right_and_one_that_does_nothing_is_not(case):
    assert not dataclasses.replace(case, launch=lambda: None).checked() <= 1
    assert case.checked() <= 1


def test_what_is_no_number_is_wrong():
    nan = torch.tensor([float("nan")])
    assert excess_of(nan, torch.zeros(1), torch.ones(1)) == float("inf")
    assert excess_of_equal(nan, nan) == float("inf")


def test_without_a_device_nothing_is_checked_and_that_is_said(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main([]) == 2
    assert "no GPU" in capsys.readouterr().err
