"""After 200 rounds auto is held against the best of the others, plain decoding included."""

from __future__ import annotations

import pytest

from benchmarks.adversity.recovery import recovery, rounds_before
from tests.benchmarks.adversity.made_cycles import cycle


def test_what_came_before_two_hundred_rounds_does_not_count():
    """Four cycles of 50 rounds are slow; from the fifth on auto is as fast as the best."""
    slow = [cycle(auto=10, plain=50, deep=80)] * 4
    fast = [cycle(auto=80, plain=50, deep=80)] * 10

    found = recovery(slow + fast, 1)

    assert (found.phase, found.best) == (1, "deep")
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(1)
    assert found.rounds == 200


def test_one_cycle_later_is_too_late():
    """The negative control: five slow cycles are 250 rounds."""
    slow = [cycle(auto=10, plain=50, deep=80)] * 5

    found = recovery(slow + [cycle(auto=80, plain=50, deep=80)] * 10, 1)

    assert found.ratio is not None
    assert found.ratio.value < 0.97
    assert found.rounds == 250


def test_plain_is_the_best_setting_when_drafts_are_no_good():
    cycles = [cycle(auto=50, plain=50, deep=20)] * 9

    found = recovery(cycles, 0)

    assert found.best == "plain"
    assert found.rounds == 0
    assert found.speeds == pytest.approx({"auto": 1, "plain": 1, "deep": 0.4})


def test_auto_that_never_gets_there_is_told():
    found = recovery([cycle(auto=40, plain=50, deep=20)] * 9, 0)

    assert found.rounds is None


def test_auto_may_be_better_than_all_settings():
    """It is no candidate for the best: its ratio is against the others."""
    found = recovery([cycle(auto=90, plain=50, deep=60)] * 9, 0)

    assert found.best == "deep"
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(1.5)


def test_a_phase_that_is_too_short_is_not_judged():
    found = recovery([cycle(auto=50, plain=50)] * 6, 0)

    assert (found.ratio, found.best) == (None, "")


def test_rounds_are_counted_from_the_first_cycle():
    cycles = [cycle(rounds=rounds, auto=1, plain=1) for rounds in (3, 5, 7)]

    assert rounds_before(cycles) == [0, 3, 8]
