"""What a session is like is told from its luck, as far as sessions differ at all."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.affinity import Affinity, Diversity
from gateway.experience import Experience
from gateway.plans import NO_DRAFTS
from gateway.policy import Wish, policy_for

ROUNDS = 40


def session(chance, usual, random):
    """A session whose first guesses are right with a chance, where `usual` is the mean of all."""
    affinity = Affinity()
    for _ in range(ROUNDS):
        affinity.add(int(random.random() < chance), usual)
    return affinity


def told(least, most, seed):
    """What many sessions tell whose chances lie between two."""
    random, diversity = Random(seed), Diversity()
    for _ in range(60):
        chance = random.choice((least, most))
        diversity.add(session(chance, (least + most) / 2, random))
    return diversity.prior_rounds


def diversity_of(prior_rounds):
    """One by which so many rounds of a session are worth what all sessions did."""
    return Diversity(luck=0.25, rounds=1.0, difference=0.25 / prior_rounds, squared_rounds=1.0)


def test_a_factor_begins_at_one_and_follows_the_session():
    affinity, diversity = Affinity(), diversity_of(4)
    assert affinity.factor(diversity) == (1.0, 0.0)
    for _ in range(100):
        affinity.add(2, 1.0)
    assert 1.5 < affinity.factor(diversity).mean < 2.0
    for _ in range(100):
        affinity.add(0, 1.0)
    assert affinity.factor(diversity).mean < 0.2


@given(st.floats(4, 24), st.floats(25, 48))
def test_the_more_all_sessions_are_worth_the_less_one_differs(few, many):
    affinity = session(0.9, 0.5, Random(1))
    assert 1.0 < affinity.factor(diversity_of(many)).mean < affinity.factor(diversity_of(few)).mean


def test_the_error_of_a_factor_is_that_of_the_mean_of_its_rounds():
    """Of 5 and of 12 rounds with a variance of 1/4 each, beside 4 that all sessions are worth."""
    for rounds in (5, 12):
        affinity = Affinity(own=rounds, expected=rounds / 2, rounds=rounds)
        error = affinity.factor(diversity_of(4)).error
        assert error == pytest.approx((0.25 / (rounds + 4)) ** 0.5 / 0.5)


@pytest.mark.parametrize("seed", range(5))
def test_where_sessions_are_alike_their_rounds_are_luck(seed):
    assert told(0.45, 0.45, seed) > 30


@pytest.mark.parametrize("seed", range(5))
def test_where_some_copy_and_some_do_not_a_few_rounds_tell(seed):
    assert told(0.05, 0.9, seed) == 4.0


@pytest.mark.parametrize("seed", range(5))
def test_between_them_it_is_as_many_rounds_as_luck_takes_to_look_like_a_difference(seed):
    """Chances 0.45 +- 0.1: luck has a variance of 0.25 a round, the difference one of 0.01."""
    assert 12 < told(0.35, 0.55, seed) < 48


def test_a_session_of_no_rounds_tells_nothing():
    diversity = Diversity()
    diversity.add(Affinity())
    assert diversity == Diversity()
    assert diversity.prior_rounds == 4.0


def test_a_session_without_drafts_leaves_nothing_behind():
    """Whatever drafters requests name."""
    experience = Experience()
    for number in range(50):
        policy_for(Wish("off", NO_DRAFTS), experience, f"drafter {number}").end()

    assert not experience.acceptance
