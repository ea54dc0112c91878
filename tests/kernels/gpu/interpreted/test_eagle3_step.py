"""The whole step of a drafter can be captured: nothing waits, nothing is taken, a replay is it."""

from itertools import count

import pytest

from draft_service.drafters.eagle3_gpu import growing
from draft_service.drafters.eagle3_gpu.inputs import Inputs
from draft_service.graphs import Bucket
from kernels.gpu.attention_shape import Tiling
from protos.messages import Plan
from tests.kernels.gpu.eagle3_pair import write_drafter
from tests.kernels.gpu.eagle3_steps import jobs_of, new_maker
from tests.kernels.gpu.proofs.capture_guard import CaptureError, CaptureGuard
from tests.kernels.gpu.proofs.memory_guard import memory_guard
from tests.kernels.gpu.proofs.recorded_step import ReplayError, StaticStep, check_replay

BUCKET = Bucket(rows=2, sessions=1, width=2, depth=2)
TILING = Tiling(lines=16, warps=4, stages=2, programs=1)
BATCHES = (jobs_of((2,), (Plan(2, 2, 4),)), jobs_of((1,), (Plan(2),), seed=1))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_drafter(tmp_path_factory.mktemp("tiny"), fc_norm=True, draft_vocab_size=50)


def new_step(path, bucket=BUCKET):
    return new_maker(path, TILING, rows=2)(bucket)


def static(path, run, bucket=BUCKET):
    """A step as proofs take it: what the host writes and reads, and what is kept of sessions."""
    maker = new_maker(path, TILING, rows=2)
    step = maker(bucket)
    buffers = {"inputs": step.inputs.memory, "results": step.results.memory}
    buffers |= maker.cache.pages._asdict() | {"states_PH": maker.cache.states_PH}
    return StaticStep(lambda: run(step), lambda: buffers)


def contents(path, bucket=BUCKET):
    for jobs in BATCHES:
        step = new_step(path, bucket)
        step.fill(jobs)
        yield {"inputs": step.inputs.memory}


def test_a_step_waits_for_nothing_and_takes_no_memory(path):
    step = new_step(path)
    step.fill(BATCHES[0])
    with CaptureGuard(most_bytes=0):
        step.run()
    (tree,) = step.drafts(1)
    assert len(tree.tokens) == 3


def test_no_program_of_a_step_meets_another_or_leaves_its_tensors(path):
    """Over two levels, where both nodes of the second come of the first one's first."""
    step = new_step(path, BUCKET._replace(depth=3))
    step.fill(jobs_of((2,), (Plan(3, 2, 6),), seed=2))
    with memory_guard():
        step.run()
    (draft,) = step.drafts(1)
    assert draft.parents[1:3] == (1, 1)


def test_a_replay_over_new_inputs_is_the_step(path):
    check_replay(lambda: static(path, lambda step: step.run()), [*contents(path)])


def test_a_step_that_waits_for_its_frontier_is_found(path, monkeypatch):
    """As one would that stops to grow when there is nothing to be grown."""
    rows_of = growing.frontier_rows

    def rows_if_any(frontier, *rest):
        if frontier.nodes_SW.max().item() >= 0:
            rows_of(frontier, *rest)

    monkeypatch.setattr(growing, "frontier_rows", rows_if_any)
    step = new_step(path)
    step.fill(BATCHES[1])
    with CaptureGuard(most_bytes=10**6), pytest.raises(CaptureError, match="item"):
        step.run()


def test_a_step_that_takes_memory_for_a_level_is_found(path, monkeypatch):
    def gather(fed_1RH, sources_R, out_R1H):
        out_R1H.copy_(fed_1RH[0, sources_R][:, None])

    monkeypatch.setattr(growing, "gather_taps", gather)
    step = new_step(path)
    step.fill(BATCHES[1])
    with CaptureGuard(most_bytes=0), pytest.raises(CaptureError, match="bytes"):
        step.run()


def test_a_step_that_counts_its_runs_is_found(path):
    """A graph would grow as deep, time after time, as when it was captured."""
    bucket, runs = BUCKET._replace(depth=1), count()

    def run(step):
        Inputs(*step.inputs.on_device).steps_N.fill_(next(runs) // 2 % 2)
        step.run()

    with pytest.raises(ReplayError, match="after a replay"):
        check_replay(lambda: static(path, run, bucket), [*contents(path, bucket)])
