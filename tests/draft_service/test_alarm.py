"""An alarm is for drafters that are never right, and for no others."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_service.alarm import LEAST_SHARE, ROUNDS, ROUNDS_OF_THE_PROVEN, Alarm
from draft_service.scoring import Scored


def counted(*accepted: int, silent: int = 0) -> Alarm:
    alarm = Alarm()
    for number in accepted:
        alarm.count(Scored(5, (1,), number, (0, 1)))
        for _ in range(silent):
            alarm.count(Scored(5, (), 0, (0, 1)))
    return alarm


def test_it_is_raised_when_no_first_draft_was_right():
    assert not counted(*[0] * (ROUNDS - 1)).is_raised
    assert counted(*[0] * ROUNDS).is_raised
    assert len(counted(*[0] * 80).evidence) == ROUNDS


def test_rounds_without_drafts_say_nothing():
    assert not counted(*[0] * (ROUNDS - 1), silent=100).is_raised


@given(st.lists(st.sampled_from([0, 0, 0, 0, 0, 0, 0, 0, 0, 3]), max_size=150), st.integers(0, 99))
def test_it_looks_at_the_last_rounds_only(accepted, silence):
    """Until a tenth of some fifty in a row were right."""
    accepted = [*accepted, *[0] * silence]
    windows = [accepted[end - ROUNDS : end] for end in range(ROUNDS, len(accepted) + 1)]
    proven = any(sum(map(bool, window)) >= 5 for window in windows)

    wrong = bool(windows) and sum(map(bool, windows[-1])) < LEAST_SHARE * ROUNDS
    assert counted(*accepted).is_raised == (wrong and not proven)


def test_one_that_was_right_before_is_given_more_rounds():
    """A session in a language that it never saw must not take it away from all others."""
    right = [1] * ROUNDS
    assert not counted(*right, *[0] * (ROUNDS_OF_THE_PROVEN - 25)).is_raised
    assert counted(*right, *[0] * ROUNDS_OF_THE_PROVEN).is_raised
    assert counted(*right, *[0] * ROUNDS_OF_THE_PROVEN).num_rounds == ROUNDS_OF_THE_PROVEN


@pytest.mark.parametrize("chance_right", [0.2, 0.5])
def test_a_drafter_that_is_poor_and_not_wrong_raises_none(chance_right):
    """Over ten thousand rounds."""
    chance, alarm = random.Random(1), Alarm()
    for _ in range(10_000):
        alarm.count(Scored(5, (1,), int(chance.random() < chance_right), (0, 1)))
        assert not alarm.is_raised
