"""A standing plan: when a drafter is wanted, and how much of what it sends is verified."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy import AUTO_PLAN, Policy
from protos.messages import DraftTree, Plan


@pytest.mark.parametrize(
    ("plan", "drafts"),
    [
        (None, False),
        (Plan(steps=0), False),
        (Plan(steps=3, draft_tokens=1), False),
        (Plan(steps=1, draft_tokens=2), True),
        (AUTO_PLAN, True),
    ],
)
def test_a_drafter_is_wanted_if_a_tree_may_have_more_than_its_root(plan, drafts):
    assert Policy(plan).drafts is drafts


def test_the_automatic_plan_is_a_chain_that_is_verified_whole():
    assert AUTO_PLAN.top_k == 1
    assert AUTO_PLAN.draft_tokens == AUTO_PLAN.steps + 1


@given(st.integers(1, 64), st.integers(1, 64), st.integers(0, 10_000))
def test_no_more_is_verified_than_planned_and_wanted(num_nodes, draft_tokens, remaining):
    """A node can commit one token at most, and the root is always verified."""
    tree = DraftTree.chain(9, tuple(range(num_nodes)))

    trimmed = Policy(Plan(steps=5, draft_tokens=draft_tokens)).trim(tree, remaining)

    assert trimmed == tree.trimmed(len(trimmed.tokens))
    assert len(trimmed.tokens) == max(1, min(num_nodes, draft_tokens, remaining))
