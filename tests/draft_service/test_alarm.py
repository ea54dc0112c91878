"""An alarm is for drafters that are never right, and for no others."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_service.alarm import ROUNDS, Alarm
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
    assert len(counted(*[0] * 80).rounds) == ROUNDS


def test_rounds_without_drafts_say_nothing():
    assert not counted(*[0] * (ROUNDS - 1), silent=100).is_raised


@given(st.lists(st.integers(0, 3), max_size=150))
def test_it_looks_at_the_last_rounds_only(accepted):
    last = accepted[-ROUNDS:]
    assert counted(*accepted).is_raised == (len(last) == ROUNDS and not any(last))


@pytest.mark.parametrize("chance_right", [0.2, 0.5])
def test_a_drafter_that_is_poor_and_not_wrong_raises_none(chance_right):
    """Over ten thousand rounds."""
    chance, alarm = random.Random(1), Alarm()
    for _ in range(10_000):
        alarm.count(Scored(5, (1,), int(chance.random() < chance_right), (0, 1)))
        assert not alarm.is_raised
