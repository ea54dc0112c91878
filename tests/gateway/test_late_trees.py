"""A larger tree that never comes in time is looked at once, not again and again."""

from dataclasses import dataclass, replace
from random import Random

import pytest

from gateway.plans import NO_LIMIT
from protos.messages import DraftTimings, DraftTree, Plan
from tests.gateway.played_world import Player, World


@dataclass
class WideIsLate(World):
    """Chains come as ever; a tree takes a second."""

    def grow(self, name: str, plan: Plan, committed_len: int, root: int) -> DraftTree:
        tree = super().grow(name, plan, committed_len, root)
        return replace(tree, timings=DraftTimings(0, 1_000_000, 0)) if plan.top_k > 1 else tree


@pytest.mark.parametrize("seed", range(3))
def test_trees_that_never_come_cost_next_to_nothing(seed):
    """Chains gain here, and no 30 s are slower than plain decoding."""
    went = Player(WideIsLate(chance=Random(seed)), "auto", NO_LIMIT).play(6000)

    assert went.worst_window(30.0) >= 0.98
    assert went.over_plain() > 1.1
