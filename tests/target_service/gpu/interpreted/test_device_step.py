"""A step can be captured: it takes no memory, waits for nothing, and its replay is the step."""

from functools import partial

import pytest
import torch

from target_service import device_layers, device_step
from target_service.buckets import Bucket
from target_service.device_engine import Load, new_memory
from target_service.device_step import DeviceStep
from target_service.models.target_model import TargetModel
from target_service.session import Rows
from target_service.step_shares import shares_of
from target_service.team import Team
from target_service.tensor_parallel import Part
from tests.kernels.gpu.proofs.capture_guard import CaptureError, CaptureGuard
from tests.kernels.gpu.proofs.recorded_step import ReplayError, StaticStep, check_replay
from tests.target_service.gpu.tiny_steps import CPU, TAPS, chunk, tree

LOAD = Load(rows=4, sessions=2, session_slots=128)
BATCHES = (
    [tree([1, 2, 3, 4], 2, [5, 6], [0, 0], [0], "everything")],
    [tree([7, 7, 8], 2, [7], [0], [2, 1], "nucleus"), chunk(range(9), 2, [0])],
)


def new_step(
    model: TargetModel, kind: type[DeviceStep] = DeviceStep, team: Team | None = None
) -> DeviceStep:
    memory = new_memory(model, TAPS, 3, LOAD, CPU, team)
    return kind(memory, Bucket(rows=4, nodes=4, sessions=2))


def described(step: DeviceStep, batch: list[Rows]) -> torch.Tensor:
    """Return the bytes that describe a step."""
    step.memory.pack(step.bucket, shares_of(batch))
    return step.memory.inputs.host_B.clone()


def static(step: DeviceStep) -> StaticStep:
    memory = step.memory
    buffers = {"inputs": memory.inputs.device_B, "outputs": memory.outputs.device_B}

    def run() -> None:
        with torch.inference_mode(), CaptureGuard(most_bytes=0):
            step.run()

    pages = {name: part for name, part in memory.pages._asdict().items() if part is not None}
    return StaticStep(run, lambda: buffers | pages)


def test_a_step_that_takes_memory_is_found(models, monkeypatch):
    monkeypatch.setattr(device_step, "find_slots", lambda *args: args[-1].copy_(args[-1] + 1))
    with pytest.raises(CaptureError, match="bytes are taken"):
        static(new_step(models["llama"])).run()


def contents(model: TargetModel) -> list[dict[str, torch.Tensor]]:
    step = new_step(model)
    return [{"inputs": described(step, batch)} for batch in BATCHES]


@pytest.mark.parametrize("kind", ["llama", "kimi", "all switches"])
def test_a_replay_is_the_step_which_takes_no_memory_and_never_leaves_the_device(models, kind):
    check_replay(lambda: static(new_step(models[kind])), contents(models[kind]))


def twins() -> Team:
    """The first of two ranks, the other of which finds the same."""
    return Team(
        Part(0, 2),
        lambda all_B, mine_B: all_B.view(2, -1).copy_(mine_B),
        lambda num_bytes, device: torch.zeros(num_bytes, dtype=torch.uint8, device=device),
    )


@pytest.mark.parametrize("kind", ["two key-value heads", "kimi in halves"])
def test_a_replay_is_the_step_where_ranks_share_the_layers(models, kind):
    with torch.inference_mode():
        check_replay(lambda: static(new_step(models[kind], team=twins())), contents(models[kind]))


class CountsItsRuns(DeviceStep):
    """What Python counts is a number to a graph."""

    runs = 0

    def run(self) -> None:
        self.runs += 1
        self.inputs.seeds_M.add_(self.runs)
        super().run()


def test_a_step_that_counts_in_python_is_found(models, monkeypatch):
    monkeypatch.setattr(device_layers, "decode_layers", lambda h_RH, *_: h_RH)
    make = partial(new_step, models["llama"], CountsItsRuns)
    with pytest.raises(ReplayError):
        check_replay(lambda: static(make()), contents(models["llama"]))
