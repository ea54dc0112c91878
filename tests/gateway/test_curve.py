"""Costs by amount: what is measured is followed, what is old gives way, a hiccup changes little."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.curve import Average, Curve

AMOUNTS = st.integers(1, 512)
COSTS = st.floats(1.0, 1e6)


def test_the_first_values_count_alike():
    average = Average()
    for value in (10.0, 12.0, 14.0):
        average.add(value)

    assert average.value == pytest.approx(12.0)


def test_one_hiccup_counts_as_twice_the_usual():
    average = Average()
    for _ in range(100):
        average.add(10.0)
    average.add(10_000.0)

    assert average.value == pytest.approx(10.0 + 0.08 * 10.0)


def test_before_anything_was_measured_all_is_free():
    assert Curve(0.1).at(7) == 0.0
    assert not Curve(0.1)


def test_from_one_measurement_the_usual_slope_goes_both_ways():
    curve = Curve(0.1)
    curve.add(1, 100.0)
    assert curve.at(4) == pytest.approx(130.0)

    curve = Curve(1.0)
    curve.add(4, 100.0)
    assert curve.at(2) == pytest.approx(50.0)


def test_between_two_measurements_lies_a_line_and_behind_them_it_goes_on():
    curve = Curve(0.1)
    curve.add(2, 100.0)
    curve.add(6, 140.0)

    assert curve.at(4) == pytest.approx(120.0)
    assert curve.at(7) == pytest.approx(150.0)


@given(st.lists(st.tuples(AMOUNTS, COSTS), min_size=1, max_size=30), AMOUNTS, AMOUNTS)
def test_more_never_costs_less(measured, one, other):
    curve = Curve(0.1)
    for amount, cost in measured:
        curve.add(amount, cost)

    less, more = sorted((one, other))
    assert 0 < curve.at(less) <= curve.at(more) * (1 + 1e-9)


def test_a_measurement_that_contradicts_a_newer_one_gives_way():
    """Large forwards became cheap: what middle ones once cost is no longer true."""
    curve = Curve(0.1)
    curve.add(8, 900.0)
    curve.add(16, 100.0)

    assert curve.at(8) == 100.0


def test_what_was_not_seen_for_long_follows_the_next_measurements():
    often, rarely = Curve(0.1), Curve(0.1)
    for curve, others in ((often, 0), (rarely, 200)):
        for _ in range(50):
            curve.add(4, 100.0)
        for _ in range(others):
            curve.add(1, 10.0)
        for _ in range(3):
            curve.add(4, 150.0)

    assert often.at(4) < 115.0
    assert rarely.at(4) > 130.0


@given(st.dictionaries(st.integers(1, 8), COSTS, min_size=1))
def test_what_was_stored_is_there_again(points):
    curve, again = Curve(0.1), Curve(0.1)
    for amount, cost in points.items():
        curve.add(amount, cost)

    again.restore(curve.points())

    assert again.points() == curve.points()
