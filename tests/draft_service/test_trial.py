"""A candidate is promoted when it is better for sure, and seldom when it is not."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_service.scoring import Scored
from draft_service.trial import PromotionRule, Trial, Verdict


def scored(committed_len: int, accepted: int) -> Scored:
    return Scored(committed_len, (1,), accepted, (0, 1))


def tried(
    rule: PromotionRule | None, gain: float, seed: int = 0, *, sessions: int = 20, rounds: int = 100
) -> Trial:
    """Return a trial of a candidate that is right more often by so much, after these rounds."""
    chance, trial = random.Random(seed), Trial(rule)
    for session in map(str, range(sessions)):
        trial.begin(session)
    levels = [chance.uniform(0.3, 0.7) for _ in range(sessions)]
    for at in range(rounds):
        for session in range(sessions):
            for of_candidate in (False, True):
                right = chance.random() < levels[session] * (1 + of_candidate * gain)
                one = scored(at, int(right))
                trial.count(str(session), one, of_candidate=of_candidate)
    return trial


RULE = PromotionRule(better_by=0.05, max_rounds=1600)


def test_a_better_one_is_found_better():
    assert tried(RULE, gain=0.6).verdict is Verdict.BETTER


def test_one_that_is_no_better_is_found_out_early():
    trial = tried(RULE, gain=-0.3)

    assert trial.verdict is Verdict.NOT_BETTER
    assert trial.gain < 0


def test_what_stays_open_ends_with_the_last_round():
    """Just as much better as asked for."""
    trial = tried(RULE, gain=0.15, seed=2)

    assert trial.rounds >= 1600
    assert trial.verdict is Verdict.UNDECIDED


def test_without_a_rule_it_stays_open():
    trial = tried(None, gain=0.6)

    assert trial.verdict is Verdict.OPEN
    low, high = trial.gain_interval()
    assert 0 < low < trial.gain < high


def test_a_few_sessions_decide_nothing():
    assert tried(RULE, gain=0.6, sessions=7, rounds=400).verdict is Verdict.OPEN


def test_an_equal_one_is_seldom_promoted():
    """Though it is looked at again and again: at most one time in twenty."""
    rule = PromotionRule(better_by=0.0, max_rounds=1600)
    verdicts = [tried(rule, gain=0.0, seed=seed, sessions=8, rounds=200) for seed in range(100)]

    assert sum(trial.verdict is Verdict.BETTER for trial in verdicts) <= 5


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 3)), min_size=1, max_size=60),
    st.randoms(use_true_random=False),
)
def test_rounds_that_both_drafted_are_paired_however_they_interleave(events, chance):
    """Each side's come in order; either may skip some, or lag."""
    lengths = {False: 0, True: 0}
    drafted: dict[bool, dict[int, int]] = {False: {}, True: {}}
    trial = Trial(None)
    trial.begin("s")
    for of_candidate, step in events:
        lengths[of_candidate] += step
        accepted = chance.randint(0, 3)
        drafted[of_candidate][lengths[of_candidate]] = accepted
        trial.count("s", scored(lengths[of_candidate], accepted), of_candidate=of_candidate)
        trial.count("unknown", scored(1, 9), of_candidate=of_candidate)
    both = drafted[False].keys() & drafted[True].keys()

    assert trial.rounds == len(both)
    assert trial.candidate.numerator == sum(1 + drafted[True][at] for at in both)
    assert trial.incumbent.numerator == sum(1 + drafted[False][at] for at in both)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"better_by": -0.1}, r"better_by must be in \[0, 10\], got -0.1"),
        ({"better_by": float("nan")}, "got nan"),
        ({"better_by": 0, "confidence": 1.0}, r"confidence must be in \(0.5, 1\), got 1.0"),
        ({"better_by": 0, "max_rounds": 0}, "max_rounds must be at least 1, got 0"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(fields, reason):
    with pytest.raises(ValueError, match=reason):
        PromotionRule(**fields)


def test_looks_share_the_doubt():
    assert [PromotionRule(0, max_rounds=most).num_looks for most in (1, 200, 201, 400, 20_000)] == [
        1,
        1,
        2,
        2,
        8,
    ]
    assert PromotionRule(0, max_rounds=400).confidence_of_a_look == pytest.approx(0.975)
