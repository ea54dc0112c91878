"""A ratio of rates is of the same cycles, and its interval holds the truth."""

from __future__ import annotations

import pytest

from benchmarks.adversity.cycle import Cycle
from benchmarks.adversity.ratio import Verdict, judge, ratio_of
from benchmarks.intervals import Estimate
from tests.benchmarks.adversity.made_cycles import cycle, noisy_cycles, run


def test_a_ratio_is_of_times_when_the_tokens_are_the_same():
    """One cycle in which auto takes half the time and one in which it takes as long: 3 s to 2 s."""
    cycles = [
        Cycle(0, {"auto": run(100), "plain": run(50)}),
        Cycle(0, {"auto": run(100), "plain": run(100)}),
    ]

    assert ratio_of(cycles, "auto", "plain").value == pytest.approx(3 / 2)


def test_cycles_of_other_sizes_do_not_tilt_the_ratio():
    """Equal rates in every cycle are a ratio of 1, however many tokens each arm had in it."""
    cycles = [
        Cycle(0, {"auto": run(60, tokens=900), "plain": run(60, tokens=100)}),
        Cycle(0, {"auto": run(300, tokens=100), "plain": run(300, tokens=900)}),
    ]

    assert ratio_of(cycles, "auto", "plain").value == pytest.approx(1)


def test_what_slows_a_whole_cycle_does_not_widen_the_interval():
    """The machine's speed varies threefold, the arms' ratio never."""
    ratio = ratio_of(noisy_cycles(20, noise=0, auto=90, plain=60), "auto", "plain")

    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((1.5, 1.5, 1.5))


def test_an_interval_holds_the_truth_and_shrinks_with_cycles():
    few = ratio_of(noisy_cycles(10, noise=0.1, auto=60, plain=60), "auto", "plain")
    many = ratio_of(noisy_cycles(160, noise=0.1, auto=60, plain=60), "auto", "plain")

    for ratio in (few, many):
        assert ratio.low < 1 < ratio.high
    assert many.high - many.low < (few.high - few.low) / 2


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([], Verdict.UNMEASURED),
        ([Estimate(0.98, 0.9, 1.1), Estimate(1.2, 1.1, 1.3)], Verdict.HOLDS),
        ([Estimate(0.97, 0.95, 0.99), Estimate(1.2, 1.1, 1.3)], Verdict.OPEN),
        ([Estimate(0.97, 0.96, 0.979), Estimate(0.97, 0.95, 0.99)], Verdict.FAILS),
    ],
)
def test_a_claim_fails_only_when_a_whole_interval_is_below(ratios, verdict):
    assert judge(ratios, 0.98) is verdict


def test_an_arm_that_is_clearly_slower_is_found_out():
    """The negative control: 10 % slower in a machine that varies threefold."""
    ratio = ratio_of(noisy_cycles(40, noise=0.1, auto=54, plain=60), "auto", "plain")

    assert judge([ratio], 0.98) is Verdict.FAILS


def test_the_same_cycles_give_the_same_interval():
    cycles = [cycle(auto=rate, plain=60) for rate in (50, 60, 70)]

    assert ratio_of(cycles, "auto", "plain") == ratio_of(cycles, "auto", "plain")
