"""Every tree tells how the trees of smaller plans would have done."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.plans import CHAINS, EXPLORING, TREES, Place, covers, num_right, walk, within
from protos.messages import DraftTree, Plan

PLANS = st.builds(Plan, st.integers(1, 8), st.integers(1, 5), st.integers(2, 20))


@st.composite
def trees(draw):
    """A tree of distinct siblings, and a text that it may be right about."""
    size = draw(st.integers(1, 12))
    parents = [-1] + [draw(st.integers(0, node - 1)) for node in range(1, size)]
    ranks = [parents[:node].count(parents[node]) for node in range(size)]
    text = draw(st.lists(st.integers(0, 3), max_size=6))
    return DraftTree(1, (9, *ranks[1:]), tuple(parents)), [9, *text]


def restricted(tree, plan):
    """The same tree grown by a smaller plan, node by node."""
    depth, kept = {0: 0}, {0: 0}
    tokens, parents = [tree.tokens[0]], [-1]
    for node, parent in enumerate(tree.parents[1:], start=1):
        rank = tree.parents[1:node].count(parent)
        fits = rank < plan.top_k and len(tokens) < plan.draft_tokens
        if parent in kept and fits and depth[parent] < plan.steps:
            depth[node], kept[node] = depth[parent] + 1, len(tokens)
            tokens.append(tree.tokens[node])
            parents.append(kept[parent])
    return DraftTree(tree.committed_len, tuple(tokens), tuple(parents))


@given(trees(), st.integers(1, 4))
def test_a_chain_inside_a_tree_is_judged_as_if_it_had_been_drafted(drawn, steps):
    tree, text = drawn
    plan = Plan(steps, 1, steps + 1)

    alone = walk(restricted(tree, plan), text)

    assert num_right(walk(tree, text).places, plan) == len(alone.places)


@given(trees(), st.integers(1, 4))
def test_fewer_nodes_of_a_tree_are_judged_as_if_the_others_had_been_cut(drawn, nodes):
    tree, text = drawn
    cut = walk(tree.trimmed(nodes), text)

    assert num_right(walk(tree, text).places, Plan(63, 63, nodes)) == len(cut.places)


@given(trees())
def test_what_is_right_is_the_path_that_the_text_takes(drawn):
    tree, text = drawn
    seen = walk(tree, text)

    path = [place.node for place in seen.places]
    assert [tree.tokens[node] for node in path] == text[1 : len(path) + 1]
    assert [tree.parents[node] for node in path] == [0, *path][: len(path)]
    assert [place.depth for place in seen.places] == list(range(1, len(path) + 1))


@given(trees())
def test_it_is_decided_as_soon_as_more_text_would_not_change_it(drawn):
    tree, text = drawn
    seen = walk(tree, text)
    longer = [walk(tree, [*text, token]) for token in range(4)]

    assert seen.decided == all(one.places == seen.places for one in longer)


@given(PLANS, PLANS)
def test_a_plan_is_covered_by_what_allows_all_that_it_may_do(plan, other):
    joined = Plan(
        max(plan.steps, other.steps),
        max(plan.top_k, other.top_k),
        max(plan.draft_tokens, other.draft_tokens),
    )
    assert covers(joined, plan)
    assert covers(plan, plan)
    assert covers(plan, other) == (joined == plan)


@given(PLANS)
def test_no_choice_exceeds_the_limits_and_each_drafts_something(limits):
    choices = within(limits)

    assert choices
    assert len(set(choices)) == len(choices)
    for plan in choices:
        assert covers(limits, plan)
        assert plan.steps
        assert plan.draft_tokens > 1


@pytest.mark.parametrize("limits", [Plan(0), Plan(3, 1, 1)])
def test_limits_that_allow_no_draft_leave_no_choice(limits):
    assert within(limits) == ()


def test_what_is_explored_with_tells_of_most_plans():
    assert EXPLORING in TREES
    assert sum(covers(EXPLORING, plan) for plan in (*CHAINS, *TREES)) >= 6


def test_a_place_beside_the_first_children_is_in_no_chain():
    assert not Place(1, 1, 2).is_in(Plan(4, 1, 5))
    assert Place(1, 0, 7).is_in(Plan(1, 1, 2))
