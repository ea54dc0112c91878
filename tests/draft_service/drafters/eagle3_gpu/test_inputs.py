"""What a step is told: rows of real sessions, and that nothing else is real."""

import torch

from draft_service.drafters import Wanted
from draft_service.drafters.eagle3_gpu.follower import GpuFollower
from draft_service.drafters.eagle3_gpu.inputs import Inputs
from draft_service.drafters.eagle3_gpu.launches import Extension, Job, Tree
from draft_service.graphs import Bucket, Growth
from draft_service.kv_pool import KvPool
from kernels.gpu.packed_buffer import PackedBuffer
from protos.messages import Plan, SamplingParams

BUCKET = Bucket(rows=8, sessions=4, width=2, depth=2)
SEED = 2**64 - 3


def new_inputs():
    return Inputs(*PackedBuffer(Inputs.pieces(BUCKET, 6, 5), torch.device("cpu")).on_host)


def jobs():
    """A tree after two rows, a tree without rows, and rows without a tree."""
    pool = KvPool(20)
    followers = [GpuFollower(pool, first_row) for first_row in (0, 10, 0)]
    for follower, rows in zip(followers, (70, 3, 1), strict=True):
        follower.reserve(rows)
        follower.take_in(rows)
    sampling = SamplingParams(temperature=0.5, top_k=7, top_p=0.25, min_p=0.125, seed=SEED)
    trees = [
        Tree(Wanted(follower, [*range(length)], plan, sampling), Growth.of(plan))
        for follower, length, plan in zip(
            followers, (71, 14), (Plan(2, 2, 5), Plan(1)), strict=False
        )
    ]
    taps = torch.arange(12.0).view(2, 6)
    return [
        Job(followers[0], Extension(followers[0], 68, [3, 4], taps), trees[0]),
        Job(followers[1], None, trees[1]),
        Job(followers[2], Extension(followers[2], 0, [9], taps[:1]), None),
    ]


def test_rows_and_trees_are_told_with_where_they_lie():
    inputs, batch = new_inputs(), jobs()
    inputs.fill(batch, BUCKET.width)

    told = {name: part.tolist() for name, part in inputs._asdict().items()}
    assert told["tokens_R"][:3] == [3, 4, 9]
    assert told["taps_RX"][1] == [6.0, 7.0, 8.0, 9.0, 10.0, 11.0]
    assert (told["session_R"][:3], told["positions_R"][:3]) == ([0, 0, 2], [68, 69, 0])
    assert told["text_positions_R"][:3] == [68, 69, 0]
    assert (told["first_row_N1"], told["prefix_len_N"]) == ([0, 2, 2, 3, 3], [68, 0, 0, 0])
    assert (told["last_row_N"], told["first_node_N1"]) == ([1, -1, 2, -1], [0, 2, 4, 4, 4])
    pages = [list(job.follower.pages) for job in batch]
    assert told["state_N"] == [pages[0][0], pages[1][0], pages[2][0], -1]
    assert told["pages_NB"][0][: len(pages[0])] == pages[0]
    assert (told["real_len_N"], told["length_N"]) == ([70, 3, 0, 0], [71, 14, 0, 0])
    assert told["root_N"] == [70, 13, 0, 0]
    assert (told["width_N"], told["steps_N"]) == ([2, 1, 0, 0], [2, 1, 0, 0])
    assert told["draft_tokens_N"] == [5, 64, 1, 1]
    assert told["seed_N"] == [-3, -3, 0, 0]
    assert (told["temperature_N"], told["top_k_N"]) == ([0.5, 0.5, 0.0, 0.0], [7, 7, 0, 0])
    assert told["top_p_N"] == [0.25, 0.25, 1.0, 1.0]
    assert told["log_min_p_N"][:2] == torch.full((2,), 0.125).log().tolist()


def test_after_no_batch_nothing_is_real():
    """Whatever was told before."""
    inputs = new_inputs()
    inputs.fill(jobs(), BUCKET.width)
    inputs.fill((), BUCKET.width)

    for name in ("first_row_N1", "first_node_N1", "prefix_len_N", "real_len_N", "steps_N"):
        assert not getattr(inputs, name).any(), name
    assert (inputs.state_N == -1).all()
    assert (inputs.last_row_N == -1).all()
