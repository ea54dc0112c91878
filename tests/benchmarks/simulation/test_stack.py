"""A simulated stack behaves as its parts say, and the same way every time."""

from dataclasses import replace

import pytest

from benchmarks.simulation.acceptance import Acceptance
from benchmarks.simulation.forecast import fixed_policies, plain_policies
from benchmarks.simulation.hardware import Drafting
from benchmarks.simulation.presets import PRESETS
from benchmarks.simulation.stack import Load, Stack, simulate

KIMI = PRESETS["kimi-k2.5-8xh200"]
GOOD = Acceptance()


def speed(hardware, load, policies, plain_steps=1500):
    return simulate(hardware, load, policies, plain_steps=plain_steps).tokens_per_second


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("sessions", [1, 8])
def test_plain_decoding_is_a_step_a_token(name, sessions):
    """Nothing of speculation is left behind: no hops, no drafter."""
    hardware = PRESETS[name]
    outcome = simulate(hardware, Load(GOOD, sessions), plain_policies(), plain_steps=600)
    assert outcome.tokens_per_second == pytest.approx(1 / hardware.plain_s(sessions), rel=0.01)
    assert (outcome.drafter_busy, outcome.accept_length) == (0, 1)


def test_the_same_seed_gives_the_same_figures():
    load = Load(GOOD, sessions=4, seed=3)
    runs = [simulate(KIMI, load, fixed_policies(3), plain_steps=200) for _ in range(2)]
    assert runs[0] == runs[1]
    assert simulate(KIMI, replace(load, seed=4), fixed_policies(3), plain_steps=200) != runs[0]


def test_one_session_pays_hops_draft_and_verification():
    """A round of 2 steps: three hops, taps and one more step, a forward of three rows."""
    outcome = simulate(KIMI, Load(GOOD), fixed_policies(2), plain_steps=1500)
    drafting_s = KIMI.drafter.extend_s(2) + KIMI.drafter.grow_s(2, 1)
    wanted_s = KIMI.target.seconds(3, 1) + drafting_s + 1.5 * 0.4e-3
    assert outcome.round_ms == pytest.approx(1000 * wanted_s, rel=0.02)


def test_hiding_the_overhead_brings_what_arithmetic_on_bytes_says():
    """Two steps at accept length 2.0 to 2.1, ideally hidden: 154 to 162 tok/s; hops cost some.

    An upper bound for FP8 experts at 80 % of the bandwidth of 8 H200, from the bytes that a round
    reads.
    """
    drafter = Acceptance().scaled_to(2.05, steps=2)
    found = speed(KIMI, Load(drafter), fixed_policies(2), plain_steps=6000)
    assert 0.8 * 158 < found < 162


def test_a_drafter_that_is_never_right_costs_its_rounds():
    """Fixed plans lose then. That is what the policy is for."""
    useless = Load(Acceptance((0.0,)))
    assert speed(KIMI, useless, fixed_policies(3)) < 0.8 * speed(KIMI, useless, plain_policies())


def test_a_drafter_that_never_answers_costs_next_to_nothing():
    """Deadlines that pass in vain are waited for ever more rarely: the real rounds at work."""
    frozen = replace(KIMI, drafter=Drafting(extend_ms=1e9, step_ms=1.0))
    without_hops = 1 / (KIMI.plain_s(1) + 0.4e-3)
    assert speed(frozen, Load(GOOD), fixed_policies(3), 4000) > 0.9 * without_hops


def test_replicas_share_the_sessions():
    """Two drafters are half as busy as one."""
    one = simulate(KIMI, Load(GOOD, 8), fixed_policies(2), plain_steps=300)
    two = simulate(KIMI, Load(GOOD, 8, drafters=2), fixed_policies(2), plain_steps=300)
    assert two.tokens_per_second > 0.9 * one.tokens_per_second
    assert two.drafter_busy < one.drafter_busy


def test_in_one_engine_drafter_and_target_take_turns():
    """Together they are never busier than one machine."""
    engine = replace(KIMI, network=None)
    outcome = simulate(engine, Load(GOOD, 4), fixed_policies(3), plain_steps=300)
    assert outcome.drafter_busy + outcome.target_busy <= 1.0001
    assert outcome.drafter_busy > 0.05


def test_a_far_drafter_brings_less():
    speeds = [
        speed(
            replace(KIMI, network=replace(KIMI.network, rtt_ms=rtt)), Load(GOOD), fixed_policies(3)
        )
        for rtt in (0.2, 2.0, 10.0)
    ]
    assert speeds == sorted(speeds, reverse=True)


def test_a_sessions_rounds_are_the_gateways_own():
    """Statistics are counted by the real code: accept length by position falls."""
    stack = Stack(KIMI, Load(GOOD), fixed_policies(3))
    stack.clock.run_until(20.0)
    statistics = stack.sessions[0].rounds.statistics
    assert statistics.missed == 0
    assert statistics.accept_length == pytest.approx(GOOD.accept_length(3), rel=0.05)
    assert statistics.accepted_by_position == sorted(statistics.accepted_by_position, reverse=True)
    assert statistics.draft.grow_us > 0
