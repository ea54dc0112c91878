"""The model of replays finds each planted fault, in a small draft step of torch and Triton.

Legend: R rows, V vocabulary, H hidden.
"""

import pytest
import torch

from kernels.gpu import elementwise
from tests.kernels.gpu.proofs.capture_guard import CaptureGuard
from tests.kernels.gpu.proofs.recorded_step import (
    RecordedStep,
    ReplayError,
    StaticStep,
    check_replay,
)

R, V, H = 4, 512, 64


class DraftStep:
    """Token and hidden state to the next ones; what is missing is attention."""

    def __init__(self):
        draw = torch.Generator().manual_seed(0)
        self.embedding_VH, self.head_VH = torch.randn(2, V, H, generator=draw).bfloat16().unbind()
        self.norm_H = torch.ones(H, dtype=torch.bfloat16)
        self.tokens_R = torch.zeros(R, dtype=torch.int64)
        self.h_RH = torch.zeros(R, H, dtype=torch.bfloat16)
        self.x_RH, self.normed_RH = torch.empty_like(self.h_RH), torch.empty_like(self.h_RH)
        self.next_R = torch.zeros(R, dtype=torch.int64)
        self.steps = 0

    def step(self):
        torch.index_select(self.embedding_VH, 0, self.tokens_R, out=self.x_RH)
        elementwise.add_rms_norm(self.x_RH, self.h_RH, self.norm_H, 1e-6, self.h_RH, self.normed_RH)
        logits_RV = self.normed_RH @ self.head_VH.T
        self.next_R.copy_(logits_RV.argmax(-1))


class CountsInPython(DraftStep):
    def step(self):
        self.steps += 1
        self.h_RH.mul_(self.steps)
        super().step()


class BranchesInPython(DraftStep):
    def step(self):
        self.steps += 1
        if self.steps % 2:
            self.h_RH.add_(1)
        super().step()


class RenamesABuffer(DraftStep):
    def step(self):
        super().step()
        self.h_RH = self.h_RH + 1


class LaunchesAnotherGrid(DraftStep):
    def step(self):
        super().step()
        self.steps += 1
        rows = slice(0, 1 + self.steps % 2)
        elementwise.rms_norm(self.h_RH[rows], self.norm_H, 1e-6, self.h_RH[rows])


def static_step(kind):
    made = kind()
    return StaticStep(made.step, lambda: {k: v for k, v in vars(made).items() if k != "steps"})


def inputs(times):
    return [
        {"tokens_R": torch.randint(0, V, (R,)), "h_RH": torch.randn(R, H).bfloat16()}
        for _ in range(times)
    ]


def test_a_step_over_its_buffers_replays():
    check_replay(lambda: static_step(DraftStep), inputs(3))


@pytest.mark.parametrize(
    "kind", [CountsInPython, BranchesInPython, RenamesABuffer, LaunchesAnotherGrid]
)
def test_what_python_does_between_operations_is_missed(kind):
    with pytest.raises(ReplayError):
        check_replay(lambda: static_step(kind), inputs(3))


def test_a_step_is_guarded_while_it_is_recorded():
    """Guards and recordings lie in one another, in any order."""
    step = static_step(DraftStep)
    with CaptureGuard(most_bytes=2**20), RecordedStep() as inside:
        step.run()
    with RecordedStep() as outside, CaptureGuard(most_bytes=2**20):
        step.run()
    assert inside.plan(step.buffers()) == outside.plan(step.buffers())


def test_a_plan_tells_operations_launches_and_their_buffers():
    step = static_step(DraftStep)
    with RecordedStep() as record:
        step.run()
    names = [name for name, _ in record.plan(step.buffers())]
    assert "_add_rms_norm" in names
    assert any("argmax" in name for name in names)
    args = dict(record.plan(step.buffers()))["_add_rms_norm"]
    assert [arg[0] for arg in args if isinstance(arg, tuple)][:2] == ["x_RH", "h_RH"]
    assert args[-1] == R, "the grid"
