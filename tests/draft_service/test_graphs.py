"""Buckets have room for what is put into them, and what is put into them is what was planned."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_service import graphs
from draft_service.graphs import (
    MOST_ROWS,
    TREE_SLOTS,
    Bucket,
    Growth,
    bucket_of,
    first_buckets,
    most_sessions,
    width_of,
)
from protos.messages import Plan

PLANS = st.builds(Plan, st.integers(1, 63), st.integers(1, 63), st.integers(2, 64))


@given(PLANS)
def test_a_tree_grows_as_planned_as_far_as_its_rows_fit(plan):
    """All levels in any case; as wide as there are slots for. The last level takes no rows."""
    growth = Growth.of(plan)
    assert growth.steps == min(plan.steps, plan.draft_tokens - 1)
    width = width_of([growth])
    assert growth.fits(width)
    assert (growth.steps - 1) * width <= TREE_SLOTS
    wanted = min(plan.top_k, plan.draft_tokens - 1)
    assert 1 <= growth.width <= wanted
    if growth.width < wanted:
        wider = next((one for one in graphs.WIDTHS if one > growth.width), 2 * graphs.WIDTHS[-1])
        assert wider > graphs.WIDTHS[-1] or (growth.steps - 1) * wider > TREE_SLOTS


@given(st.integers(1, 63), st.integers(2, 64))
def test_chains_are_never_cut(steps, draft_tokens):
    assert Growth.of(Plan(steps, 1, draft_tokens)) == Growth(1, min(steps, draft_tokens - 1))


@given(st.integers(0, MOST_ROWS), st.data())
def test_a_bucket_has_room(rows, data):
    growth = Growth.of(data.draw(PLANS))
    sessions = data.draw(st.integers(1, most_sessions(width_of([growth]))))

    bucket = bucket_of(rows, sessions, [growth])

    needed = Bucket(rows, sessions, *growth)
    assert all(has >= needs for has, needs in zip(bucket, needed, strict=True))
    assert bucket.sessions * bucket.width <= MOST_ROWS


@pytest.mark.parametrize(
    ("rows", "sessions", "growths", "expected"),
    [
        (0, 1, [Growth(1, 3)], Bucket(16, 1, 1, 3)),
        (17, 2, [Growth(3, 5), Growth(1, 2)], Bucket(64, 4, 4, 5)),
        (256, 64, [], Bucket(256, 64, 1, 0)),
        (3, 1, [Growth(1, 9)], Bucket(16, 1, 1, 12)),
    ],
)
def test_a_bucket_is_the_smallest(rows, sessions, growths, expected):
    assert bucket_of(rows, sessions, growths) == expected


def test_what_most_rounds_are_is_captured_at_start():
    """A chain of up to five after the rows of a round, for up to sixteen; and a piece of prompt."""
    first = first_buckets()
    assert len(set(first)) == len(first)
    for sessions in (1, 3, 16):
        for steps in (1, 3, 5):
            assert bucket_of(sessions, sessions, [Growth(1, steps)]) in first
        assert bucket_of(MOST_ROWS, sessions, []) in first
