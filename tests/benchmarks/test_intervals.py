"""An interval holds its value, narrows with more prompts, and is the same every time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.intervals import mean_of, median_of, ratio_of_sums

VALUES = st.lists(st.floats(0.1, 10), min_size=1, max_size=12)


@given(VALUES)
def test_a_median_lies_in_its_interval_which_lies_in_the_values(values):
    found = median_of(values)
    assert min(values) <= found.low <= found.value <= found.high <= max(values)


def test_equal_values_leave_no_doubt():
    found = median_of([1.5] * 5)
    assert found.as_json("x") == {"x": 1.5, "x_ci95": [1.5, 1.5]}


def test_more_prompts_narrow_the_interval():
    few, many = median_of([1, 2, 3, 4, 5]), median_of([1, 2, 3, 4, 5] * 20)
    assert many.high - many.low < few.high - few.low


def test_the_mean_of_ratios_is_the_ratio_of_means():
    over, under = [2, 40, 600], [1, 10, 300]
    ratios = [a / b for a, b in zip(over, under, strict=True)]
    assert mean_of(ratios).value == pytest.approx(mean_of(over).value / mean_of(under).value)


def test_a_mean_counts_every_value_and_a_median_does_not():
    assert median_of([1, 1, 1, 1, 16]).value == 1
    assert mean_of([1, 1, 1, 1, 16]).value == pytest.approx(16**0.2)


def test_a_ratio_of_sums_counts_what_takes_long():
    assert ratio_of_sums([1, 30], [2, 10]).value == 31 / 12


def test_pairs_are_drawn_together():
    """Every pair has the ratio 3, however large it is: there is no doubt."""
    found = ratio_of_sums([3, 30, 300], [1, 10, 100])
    assert (found.low, found.value, found.high) == pytest.approx((3, 3, 3))


@given(VALUES)
def test_the_same_values_give_the_same_interval(values):
    assert median_of(values) == median_of(values)


def test_no_values_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        median_of([])
