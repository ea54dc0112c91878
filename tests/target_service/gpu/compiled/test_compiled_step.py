"""The whole step as an H200 is given it: one plan, and nothing is compiled once it is warm."""

from collections.abc import Callable

import pytest

from kernels.gpu.latent_attention import LATENT_TILINGS
from kernels.gpu.paged_attention import PAGED_TILINGS
from target_service import device_layers
from target_service.buckets import Bucket, Buckets
from target_service.device_engine import Load, new_memory
from target_service.device_step import DeviceStep, StepMemory
from target_service.step_shares import shares_of
from tests.kernels.gpu.proofs.capture_guard import CaptureGuard
from tests.kernels.gpu.proofs.fake_driver import FakeDriver, fake_driver
from tests.target_service.gpu.tiny_steps import CPU, TAPS, tree

LOAD = Load(rows=64, sessions=8, session_slots=256)
H200 = 90


@pytest.fixture(scope="module", params=["norms and biases", "kimi", "all switches"])
def kind(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def memory(models, kind) -> StepMemory:
    """The memory of steps that are tiled as for an H200."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_layers, "tiling_of", lambda tilings, _: tilings[H200 // 10])
        memory = new_memory(models[kind], TAPS, 4, LOAD, CPU)
    tilings = PAGED_TILINGS if kind == "norms and biases" else LATENT_TILINGS
    assert memory.work.plan.shape.tiling == tilings[9]
    return memory


def launched(step: DeviceStep, run: Callable[[], object]) -> FakeDriver:
    with fake_driver(H200) as driver, CaptureGuard(most_bytes=0):
        run()
    return driver


def test_two_runs_over_the_same_buffers_are_one_plan_whatever_they_describe(memory):
    plans, step = [], DeviceStep(memory, Bucket(16, 16, 8))
    for batch in (
        [tree([1, 2, 3], 2, [5, 6], [0, 0], [0], "everything")],
        [tree([1], 0, [], [], [1]), tree([7, 8], 0, [4, 4, 4], [0, 1, 0], [2], "nucleus")],
    ):
        step.send(memory.pack(step.bucket, shares_of(batch)))
        plans.append(launched(step, step.run).launches)
    step.clear()
    plans.append(launched(step, step.run).launches)
    assert plans[0] == plans[1] == plans[2]


def test_buckets_of_all_rows_and_nodes_compile_what_three_of_them_do(memory):
    """Products have three tiles, by rows; all else is compiled once for a number of sessions."""
    step = {bucket: DeviceStep(memory, bucket) for bucket in Buckets(64, 8).usual()}
    of_eight = [bucket for bucket in step if bucket.sessions == 8]
    variants = {b: launched(step[b], step[b].run).variants for b in of_eight}
    few = {variant for rows in (4, 16, 64) for variant in variants[Bucket(rows, rows, 8)]}
    assert set().union(*variants.values()) == few
    assert len(of_eight) == 4


def test_a_step_without_a_tree_launches_no_head_and_no_choice(memory, kind):
    step = DeviceStep(memory, Bucket(16, 0, 8))
    names = {launch.name for launch in launched(step, step.run).launches}
    attend = "_attend" if kind == "norms and biases" else "_attend_latent"
    assert {attend, "_gather_taps"} <= names
    assert not names & {"_blocks_kernel", "_tree_walk", "_move_accepted", "_shape_trees"}


LAUNCHES = {
    "norms and biases": {"_rms_norm": 1 + 2 * 2, "_multiply": 2 * 4 + 1, "_attend": 2},
    # Two norms more a layer; products of heads, of experts and a router are called the same.
    "kimi": {"_rms_norm": 1 + 2 * 2, "_multiply": 2 * 7 + 3 + 1, "_attend_latent": 2, "_mix": 1},
    # Queries have no norm; both layers have experts.
    "all switches": {"_rms_norm": 1 + 2, "_multiply": 2 * (6 + 3) + 1, "_choose": 2, "_plan": 2},
}


def test_a_number_of_launches_a_layer(memory, kind):
    """Norms of heads are one launch, whatever the heads."""
    step = DeviceStep(memory, Bucket(4, 4, 1))
    names = [launch.name for launch in launched(step, step.run).launches]
    assert {name: names.count(name) for name in LAUNCHES[kind]} == LAUNCHES[kind]
