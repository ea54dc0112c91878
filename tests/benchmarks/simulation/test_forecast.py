"""A forecast compares the ways to decode, and counts drafters."""

from dataclasses import replace

import pytest

from benchmarks.simulation.acceptance import Acceptance
from benchmarks.simulation.forecast import (
    BUSY_ENOUGH,
    fixed_policies,
    forecast,
    with_enough_drafters,
)
from benchmarks.simulation.hardware import Drafting
from benchmarks.simulation.presets import PRESETS
from benchmarks.simulation.stack import Load

KIMI = PRESETS["kimi-k2.5-8xh200"]


@pytest.fixture(scope="module")
def one_session():
    return forecast(KIMI, Acceptance(), 1)


def test_gains_are_over_plain_decoding(one_session):
    wanted = one_session.best.tokens_per_second / one_session.plain.tokens_per_second - 1
    assert one_session.gain(one_session.best) == pytest.approx(wanted)
    assert one_session.gain(one_session.plain) == 0


def test_the_best_number_of_steps_is_the_fastest(one_session):
    fastest = max(one.tokens_per_second for one in one_session.fixed.values())
    assert one_session.best.tokens_per_second == fastest


def test_a_worse_drafter_is_worth_fewer_steps(one_session):
    worse = forecast(KIMI, Acceptance().scaled_to(1.6, steps=3), 1)
    assert worse.best_steps < one_session.best_steps
    assert worse.gain(worse.best) < one_session.gain(one_session.best)


def test_a_slow_drafter_is_needed_more_than_once(one_session):
    """One that takes a millisecond a row is busy all the time with eight sessions."""
    slow = replace(PRESETS["dense-70b"], drafter=Drafting(2.0, 1.0, row_ms=1.0))
    outcome, drafters = with_enough_drafters(
        slow, Load(Acceptance(), 8), lambda: fixed_policies(3), plain_steps=100
    )
    assert one_session.drafters < 1 < drafters
    assert outcome.drafter_busy <= BUSY_ENOUGH
