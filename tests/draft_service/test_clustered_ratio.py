"""A ratio over rounds is as sure as its sessions are many and alike."""

import math
import random
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

from draft_service.clustered_ratio import ClusteredRatio, student_t_quantile

ROUNDS = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.integers(1, 6), st.integers(1, 6)), max_size=60
)


def grown(rounds) -> ClusteredRatio:
    ratio = ClusteredRatio()
    for session, numerator, denominator in rounds:
        ratio.add(session, numerator, denominator)
    return ratio


@given(ROUNDS)
def test_the_variance_is_the_linearised_one_between_sessions(rounds):
    """Whatever the order in which their rounds come."""
    ratio, sums = grown(rounds), defaultdict(lambda: [0, 0])
    for session, numerator, denominator in rounds:
        sums[session][0] += numerator
        sums[session][1] += denominator
    if len(sums) < 2:
        assert ratio.variance == math.inf
        return
    n, d = (sum(one[side] for one in sums.values()) for side in (0, 1))
    spread = sum((a - n / d * b) ** 2 for a, b in sums.values())

    assert ratio.value == pytest.approx(n / d)
    assert ratio.variance == pytest.approx(
        spread * len(sums) / (len(sums) - 1) / d**2, rel=1e-6, abs=1e-9
    )


@given(ROUNDS)
def test_sessions_that_ended_count_as_before(rounds):
    """And nothing is kept of each."""
    ratio = grown(rounds)
    before = ratio.value, ratio.variance
    for session in "abcdef":
        ratio.end(session)

    assert (ratio.value, ratio.variance) == before
    assert ratio._running == {}


def test_without_rounds_there_is_nothing_to_know():
    assert ClusteredRatio().value == 0
    assert ClusteredRatio().interval() == (-math.inf, math.inf)


@pytest.mark.parametrize("sessions", [8, 30])
def test_an_interval_holds_the_truth_as_often_as_it_says(sessions):
    """Though rounds of one session are alike: taking them for independent would fail by far."""
    chance, held, naive_held, trials = random.Random(4), 0, 0, 400
    for _ in range(trials):
        ratio, seen = ClusteredRatio(), []
        for session in range(sessions):
            level = chance.gauss(2, 0.5)
            for _ in range(40):
                seen.append(level + chance.gauss(0, 1))
                ratio.add(str(session), seen[-1])
        low, high = ratio.interval(0.95)
        held += low <= 2 <= high
        mean = sum(seen) / len(seen)
        deviation = math.sqrt(sum((x - mean) ** 2 for x in seen) / len(seen) ** 2)
        naive_held += abs(mean - 2) <= 1.96 * deviation

    assert 0.92 <= held / trials <= 0.98
    assert naive_held / trials < 0.7


@pytest.mark.parametrize("freedom", [1, 2, 3, 5, 7, 20, 1000])
@pytest.mark.parametrize("probability", [0.9, 0.975, 0.995])
def test_students_t_is_right_to_within_a_percent(freedom, probability):
    expected = t.ppf(probability, freedom)
    assert student_t_quantile(probability, freedom) == pytest.approx(expected, rel=0.01)
