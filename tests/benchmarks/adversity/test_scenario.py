"""Every scenario ends as it began, and dear rows are dear."""

from __future__ import annotations

import pytest

from benchmarks.adversity.scenario import SCENARIO_NAMES, RowCost, scenarios


@pytest.mark.parametrize("name", SCENARIO_NAMES)
def test_what_went_wrong_is_well_again_in_the_end(name):
    """So that auto's way back is measured too."""
    first, *middle, last = scenarios(RowCost(10_000, 100))[name].phases

    for field in ("disturbance", "sessions", "drafter_lives"):
        assert getattr(first, field) == getattr(last, field)
    assert all(
        (one.disturbance, one.sessions, one.drafter_lives)
        != (first.disturbance, first.sessions, first.drafter_lives)
        for one in middle
    )


def test_a_dear_row_costs_three_times_as_much():
    assert RowCost(10_000, 1_000).extra_us == pytest.approx(2_000)


def test_a_row_that_is_nearly_free_becomes_dear_enough_to_notice():
    assert RowCost(10_000, 10).extra_us + 10 == pytest.approx(1_550)
