"""The steps of a batch: every row and every tree once, rows first, none larger than a bucket."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draft_service.drafters import Wanted
from draft_service.drafters.eagle3_gpu.follower import GpuFollower
from draft_service.drafters.eagle3_gpu.launches import Extension, Tree, launches_of
from draft_service.graphs import MOST_ROWS, SESSIONS, Bucket, Growth
from draft_service.kv_pool import KvPool
from protos.messages import Plan, SamplingParams

PLANS = st.none() | st.builds(Plan, st.integers(1, 63), st.integers(1, 63), st.integers(2, 64))
SESSIONS_OF_A_BATCH = st.lists(st.tuples(st.integers(0, 300), PLANS), max_size=80)


def batch_of(sessions):
    """Return rows and trees of sessions: so many new rows and a plan each, or none."""
    pool, extensions, trees = KvPool(100), [], []
    for count, plan in sessions:
        follower = GpuFollower(pool, 0)
        if count:
            extensions.append(Extension(follower, 5, [*range(count)], torch.zeros(count, 1)))
        if plan:
            wanted = Wanted(follower, [1, 2], plan, SamplingParams())
            trees.append(Tree(wanted, Growth.of(plan)))
    return extensions, trees


@given(SESSIONS_OF_A_BATCH)
def test_every_row_is_run_in_order_and_every_tree_grown_once_after_them(sessions):
    extensions, trees = batch_of(sessions)
    left = {extension.follower: list(extension.tokens) for extension in extensions}
    grown = []
    for launch in launches_of(extensions, trees):
        assert launch.jobs
        for job in launch.jobs:
            if job.extension:
                count = len(job.extension.tokens)
                assert job.extension.first == 5 + job.extension.tokens[0]
                assert job.extension.tokens == left[job.follower][:count]
                del left[job.follower][:count]
            if job.tree:
                assert not left.get(job.follower)
                grown.append(job.tree)
    assert not any(left.values())
    assert sorted(map(id, grown)) == sorted(map(id, trees))


@given(SESSIONS_OF_A_BATCH)
def test_a_step_fits_its_bucket_and_has_each_session_once_those_with_trees_first(sessions):
    for launch in launches_of(*batch_of(sessions)):
        jobs, bucket = launch
        assert len({job.follower for job in jobs}) == len(jobs) <= bucket.sessions
        assert sum(len(job.extension.tokens) for job in jobs if job.extension) <= bucket.rows
        with_trees = [job.tree is not None for job in jobs]
        assert with_trees == sorted(with_trees, reverse=True)
        for job in jobs:
            if job.tree:
                assert job.tree.growth.fits(bucket.width)
                assert job.tree.growth.steps <= bucket.depth


def test_a_usual_round_is_one_step():
    """Some rows of each session, and a chain for most of them."""
    (launch,) = launches_of(*batch_of([(2, Plan(3)), (1, None), (4, Plan(2))]))
    assert launch.bucket == Bucket(16, 4, 1, 3)


@pytest.mark.parametrize(
    ("sessions", "buckets"),
    [
        ([], []),
        ([(0, Plan(2))], [Bucket(16, 1, 1, 2)]),
        ([(MOST_ROWS + 1, None)], [Bucket(256, 1, 1, 0), Bucket(16, 1, 1, 0)]),
        ([(1, Plan(20)), (1, Plan(2, 16))], [Bucket(16, 4, 1, 24), Bucket(16, 1, 16, 2)]),
        (
            [(1, Plan(1, 16))] * SESSIONS[-1],
            [Bucket(64, 64, 1, 0), *[Bucket(16, 16, 16, 1)] * 4],
        ),
    ],
    ids=["nothing", "no rows", "a long prompt", "deep and wide", "many wide trees"],
)
def test_what_does_not_fit_into_one_step_takes_more(sessions, buckets):
    assert [launch.bucket for launch in launches_of(*batch_of(sessions))] == buckets
