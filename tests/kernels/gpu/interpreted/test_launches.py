"""Launches are counted when they are captured, and told of each replay."""

import torch

from benchmarks.gpu_check.launches import CountingCapture, Launches
from kernels.gpu.elementwise import silu_mul
from tests.kernels.gpu.proofs.recorded_step import recorded

X_RF, OUT_RF, COPY_RF = (torch.ones(2, 16, dtype=torch.bfloat16) for _ in range(3))


def step(times):
    """A kernel that often, and two operations of torch that write; views are none."""
    for _ in range(times):
        silu_mul(X_RF, X_RF, OUT_RF)
    COPY_RF.copy_(OUT_RF)
    COPY_RF[:1].view(-1).zero_()


def test_a_replay_stands_for_what_was_launched_when_it_was_captured():
    capture = CountingCapture(recorded)
    once, thrice = (capture(lambda times=times: step(times)) for times in (1, 3))
    assert capture.take() == Launches(0, 0)
    once()
    assert capture.take() == Launches(3, 1)
    once()
    thrice()
    assert capture.take() == Launches(8, 2)
    assert capture.take() == Launches(0, 0)


def test_what_is_launched_outside_of_graphs_is_not_counted():
    capture = CountingCapture(recorded)
    replay = capture(lambda: step(1))
    step(2)
    replay()
    assert capture.take() == Launches(3, 1)
