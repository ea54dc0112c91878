"""The gateway's policy on big hardware: next to nothing is lost, and what is to be had is found."""

import pytest

from benchmarks.simulate import DRAFTERS
from benchmarks.simulation.acceptance import Acceptance
from benchmarks.simulation.forecast import auto_policies, fixed_policies, plain_policies
from benchmarks.simulation.presets import PRESETS
from benchmarks.simulation.stack import Load, Stack, simulate

KIMI = PRESETS["kimi-k2.5-8xh200"]
NEVER_RIGHT = Acceptance((0.0,))


def over_plain(hardware, load, policies, plain_steps):
    plain = simulate(hardware, load, plain_policies(), plain_steps=plain_steps)
    found = simulate(hardware, load, policies, plain_steps=plain_steps)
    return found.tokens_per_second / plain.tokens_per_second


@pytest.mark.parametrize("sessions", [1, 4])
def test_a_drafter_that_is_never_right_costs_next_to_nothing(sessions):
    """Any fixed plan loses a tenth or more."""
    load, steps = Load(NEVER_RIGHT, sessions), 3000 // sessions
    assert over_plain(KIMI, load, auto_policies(), steps) > 0.95
    assert over_plain(KIMI, load, fixed_policies(1), steps) < 0.9


@pytest.mark.parametrize(("name", "tuned_steps"), [("kimi-k2.5-8xh200", 4), ("dense-70b", 5)])
def test_most_of_what_a_good_drafter_brings_is_found(name, tuned_steps):
    """A plan that was tuned by hand is at most a tenth faster, also where long chains are best."""
    hardware, load = PRESETS[name], Load(Acceptance())
    found = over_plain(hardware, load, auto_policies(), 3000)
    tuned = over_plain(hardware, load, fixed_policies(tuned_steps), 3000)
    assert found > 0.9 * tuned > 1.5


@pytest.mark.parametrize("sessions", [4, 16])
def test_what_pays_only_if_all_take_part_is_found(sessions):
    """One session that drafts among plain ones gains nothing here."""
    load, steps = Load(Acceptance(), sessions), 4800 // sessions
    found = over_plain(KIMI, load, auto_policies(), steps)
    tuned = max(over_plain(KIMI, load, fixed_policies(k), steps) for k in (3, 4, 5))
    assert found > 0.9 * tuned > 1.3


def tokens_in(stack, seconds):
    before = stack.sessions[0].rounds.committed_len
    stack.clock.run_until(stack.clock.now + seconds)
    return stack.sessions[0].rounds.committed_len - before


def test_a_drafter_that_fails_is_given_up_and_one_that_recovers_is_taken_up():
    """Good, never right, good again: ten seconds each."""
    plain = 10 / KIMI.plain_s(1)
    stack = Stack(KIMI, Load(Acceptance()), auto_policies())
    good = tokens_in(stack, 10)
    stack.guessers[0].acceptance = NEVER_RIGHT
    failed = tokens_in(stack, 10)
    stack.guessers[0].acceptance = Acceptance()
    recovered = tokens_in(stack, 10)
    assert good > 1.5 * plain
    assert failed > 0.95 * plain
    assert recovered > 1.2 * plain


@pytest.mark.slow
@pytest.mark.parametrize("sessions", [1, 4, 16])
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("name", PRESETS)
def test_auto_is_never_slower_than_plain_decoding(name, drafter, sessions):
    """At most 3 % in thirty seconds, trials and all, wherever it is and whatever drafts."""
    load, steps = Load(DRAFTERS[drafter], sessions), int(45 / PRESETS[name].plain_s(sessions))
    assert over_plain(PRESETS[name], load, auto_policies(), steps) > 0.97
