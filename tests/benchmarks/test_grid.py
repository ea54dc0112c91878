"""Settings that ask for the same tree are one setting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.grid import Grid, parse_fractions, parse_numbers, tree_of
from draft_service.tree_growth import Candidate, TreeGrowth
from protos.messages import Plan

PLANS = st.builds(Plan, st.integers(1, 8), st.integers(1, 5), st.integers(2, 16))


def grown(plan: Plan, scores: list[float]):
    """Grow a tree whose candidates have these scores, in turn."""
    growth, count = TreeGrowth(plan), 0
    while growth.frontier:
        level = []
        for _ in growth.frontier:
            here = sorted((scores[(count + i) % len(scores)] for i in range(8)), reverse=True)
            level.append(
                [Candidate(i, score, score) for i, score in enumerate(here)][: growth.width]
            )
            count += 8
        growth.expand(level)
    draft = growth.draft()
    return draft.tokens, draft.parents


@given(PLANS, st.lists(st.floats(-4, -0.1), min_size=7, max_size=40))
def test_the_smallest_plan_asks_for_the_same_tree(plan, scores):
    """Whatever the drafter thinks likely."""
    assert grown(tree_of(plan), scores) == grown(plan, scores)


@given(PLANS)
def test_the_smallest_plan_is_the_smallest(plan):
    smallest = tree_of(plan)
    assert tree_of(smallest) == smallest
    assert all(getattr(smallest, name) <= getattr(plan, name) for name in vars(plan))


def test_a_grid_measures_every_tree_once():
    grid = Grid([1, 2, 8], [1], [2, 4])
    assert len(grid.cells) == 6
    assert grid.trees == [Plan(1, 1, 2), Plan(2, 1, 3), Plan(3, 1, 4)]


def test_a_value_over_its_limit_is_named():
    with pytest.raises(ValueError, match=r"draft_tokens.*65"):
        _ = Grid([1], [1], [65]).trees


def test_a_plan_without_drafts_is_the_root():
    assert tree_of(Plan(3, 2, 1)) == tree_of(Plan(0, 1, 8)) == Plan(0, 1, 1)


def test_lists_are_read_and_what_is_none_is_named():
    assert parse_numbers("1, 2,4", "steps") == [1, 2, 4]
    assert parse_fractions("0,0.7", "t") == [0, 0.7]
    with pytest.raises(ValueError, match="steps"):
        parse_numbers("1;2", "steps")
    with pytest.raises(ValueError, match="temperature"):
        parse_fractions("warm", "temperature")
