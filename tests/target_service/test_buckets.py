"""A step's bucket is large enough for it, as small as can be, and among those that are captured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from target_service.buckets import Bucket, Buckets

LIMITS = st.tuples(st.integers(128, 2048), st.integers(1, 600))


@given(limits=LIMITS, data=st.data())
def test_a_bucket_holds_its_step_and_every_step_with_a_tree_has_a_captured_one(limits, data):
    buckets = Buckets(*limits)
    rows = data.draw(st.integers(1, limits[0]))
    nodes = data.draw(st.integers(0, rows))
    sessions = data.draw(st.integers(1, min(rows, limits[1])))
    found = buckets.fitting(rows, nodes, sessions)
    assert all(has >= needs for has, needs in zip(found, (rows, nodes, sessions), strict=True))
    assert found.nodes <= found.rows
    assert (found in set(buckets.usual())) == (nodes > 0)


@given(LIMITS)
def test_the_largest_step_fits_the_largest_bucket_and_none_is_larger(limits):
    buckets = Buckets(*limits)
    for bucket in buckets.usual():
        assert all(size <= most for size, most in zip(bucket, buckets.largest, strict=True))
    assert buckets.largest in set(buckets.usual()) or limits[1] > limits[0]


def test_a_plain_step_is_computed_alone_and_a_prompt_reads_the_head_for_its_tree_only():
    buckets = Buckets(256, 64)
    assert buckets.fitting(1, 1, 1) == Bucket(1, 1, 1)
    assert buckets.fitting(4, 4, 1) == Bucket(4, 4, 1)
    assert buckets.fitting(32, 0, 1) == Bucket(32, 0, 1)
    assert buckets.fitting(200, 3, 2) == Bucket(256, 64, 8)
    assert buckets.fitting(200, 65, 9) == Bucket(256, 256, 64)


def test_those_that_are_captured_are_few():
    assert len(list(Buckets(256, 64).usual())) == 24


@pytest.mark.parametrize("step", [(257, 1, 1), (256, 1, 65)])
def test_a_step_that_is_too_large_is_refused(step):
    with pytest.raises(ValueError, match="the largest step is"):
        Buckets(256, 64).fitting(*step)
