"""A drafter's step on a driver that is none: whatever it is filled with, it is one graph."""

import pytest

from draft_service.graphs import Bucket
from kernels.gpu.paged_attention import PAGED_TILINGS
from protos.messages import Plan
from tests.kernels.gpu.eagle3_pair import write_drafter
from tests.kernels.gpu.eagle3_steps import jobs_of, new_maker
from tests.kernels.gpu.proofs.fake_driver import fake_driver

SM = 90
TREES = {"_grow", "_draft_trees"}
"""Compiled for how many nodes there are."""
TREE, CHAIN = Plan(3, 4, 9), Plan(2)
BATCHES = (
    jobs_of((1,), (CHAIN,)),
    jobs_of((16,), (TREE,)),
    jobs_of((2, 3), (TREE,)),
    jobs_of((1, 5, 9), (TREE, CHAIN)),
    jobs_of((0, 1, 1, 1), (TREE, CHAIN, TREE, Plan(1, 2))),
)


def plans_of(step):
    """What is launched of no batch, and of each, and which variants."""
    plans, variants = [], []
    for jobs in ((), *BATCHES):
        step.fill(jobs)
        with fake_driver(SM) as driver:
            step.run()
        plans.append(driver.launches)
        variants.append(driver.variants)
    return plans, variants


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_drafter(tmp_path_factory.mktemp("tiny"), fc_norm=True, norm_before_residual=True)


def test_batches_of_all_sizes_are_one_graph_and_what_is_warm_stays_warm(path):
    """The same launches on the same addresses, of what an empty step compiled."""
    maker = new_maker(path, PAGED_TILINGS[SM // 10], rows=16)
    plans, variants = plans_of(maker(Bucket(rows=16, sessions=4, width=4, depth=3)))
    assert len(plans[0]) > 50
    assert plans == [plans[0]] * len(plans)
    assert variants == [variants[0]] * len(variants)


def test_a_deeper_bucket_compiles_nothing_but_its_trees(path):
    """All else of its levels are launches of what there is."""
    maker = new_maker(path, PAGED_TILINGS[SM // 10], rows=16)
    shallow, deep = (maker(Bucket(16, 4, 1, depth)) for depth in (2, 4))
    (few, *_), (there, *_) = plans_of(shallow)
    (many, *_), _ = plans_of(deep)
    assert len(many) > len(few)
    assert {launch.name for launch in many if launch.variant not in there} == TREES
