"""Buckets are captured when they are to be, and what is captured is the step.

Legend: R rows.
"""

import pytest
import torch

from kernels.gpu.graphs import StepGraphs
from tests.kernels.gpu.proofs.recorded_step import RecordedStep


class Doubling:
    """Adds twice its inputs to a total: a run too many or of stale inputs is seen."""

    def __init__(self, rows: int) -> None:
        self.inputs_R = torch.zeros(rows)
        self.total_R = torch.zeros(rows)
        self.runs = 0

    def clear(self) -> None:
        self.inputs_R.zero_()

    def run(self) -> None:
        self.runs += 1
        self.total_R.add_(self.inputs_R, alpha=2)


class Captures:
    """A model of captures that counts them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, run):
        self.count += 1
        with RecordedStep() as record:
            run()
        return record.replay


def fill(number):
    return lambda step: step.inputs_R.fill_(number)


def test_a_prepared_bucket_is_replayed_from_the_first_time_on():
    captures, told = Captures(), []
    graphs = StepGraphs[int, Doubling](Doubling, captures)
    graphs.prepare([1, 4], lambda bucket, cost: told.append((bucket, cost.seconds >= 0)))
    assert (captures.count, told) == (2, [(1, True), (4, True)])
    before = graphs.run(4, fill(0)).runs
    step = graphs.run(4, fill(3))
    assert (captures.count, step.runs) == (2, before)
    assert step.total_R.tolist() == [6.0] * 4


def test_another_bucket_is_launched_once_and_captured_when_it_comes_again():
    captures = Captures()
    graphs = StepGraphs[int, Doubling](Doubling, captures)
    counts, totals = [], []
    for number in (1, 2, 3):
        totals.append(graphs.run(2, fill(number)).total_R.tolist())
        counts.append(captures.count)
    assert counts == [0, 1, 1]
    assert totals == [[2.0] * 2, [6.0] * 2, [12.0] * 2], "nothing is computed twice"


def test_without_captures_every_step_is_launched():
    graphs = StepGraphs[int, Doubling](Doubling, None)
    graphs.prepare([2], lambda *_: None)
    assert graphs.run(2, fill(1)).runs == 2
    assert graphs.run(2, fill(1)).total_R.tolist() == [4.0, 4.0]


def test_a_capture_that_fails_is_told_and_tried_again():
    def failing(run):
        raise RuntimeError("out of memory")

    graphs = StepGraphs[int, Doubling](Doubling, failing)
    with pytest.raises(RuntimeError, match="out of memory"):
        graphs.prepare([1], lambda *_: None)
    with pytest.raises(RuntimeError, match="out of memory"):
        graphs.run(1, fill(1))
