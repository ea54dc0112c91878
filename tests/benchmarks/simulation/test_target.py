"""Sessions share steps; one that runs by itself waits for nobody."""

import random

import pytest

from benchmarks.simulation.clock import Clock, Machine
from benchmarks.simulation.guesses import said_at
from benchmarks.simulation.hardware import Forward
from benchmarks.simulation.target import Decode, Target
from protos.messages import DraftTree

STEP_S = 0.01


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def target(clock):
    machine = Machine(clock)
    return Target(clock, machine, Forward(9.0, 1.0), random.Random(0), jitter=0.0)


def decode_of(verdicts, clock):
    return Decode(8, on_verdict=lambda verdict: verdicts.append((clock.now, verdict)))


def plain(committed_len):
    return DraftTree.plain(committed_len, said_at(committed_len - 1))


def test_sessions_that_are_ready_share_a_step(clock, target):
    """Both wait for the rows of both, and are told so."""
    verdicts = []
    for _ in range(2):
        target.begin(decode_of(verdicts, clock), until_len=0)
    clock.run_until(1)
    assert [at for at, _ in verdicts] == pytest.approx([0.011] * 2)
    timings = verdicts[0][1].timings
    assert (timings.rows, timings.queue_us) == (2, 0)
    assert timings.forward_us + timings.accept_us == pytest.approx(11_000, abs=1)


def test_a_session_that_runs_gets_a_token_a_step(clock, target):
    verdicts = []
    target.begin(decode_of(verdicts, clock), until_len=11)
    clock.run_until(1)
    assert [at for at, _ in verdicts] == pytest.approx([STEP_S, 2 * STEP_S, 3 * STEP_S])


def back_after(seconds, clock, target, rounds=99):
    """A session in rounds that always brings its next tree so much later, so many times."""
    times = []

    def on_verdict(verdict):
        times.append(clock.now)
        if len(times) <= rounds:
            tree = plain(decode.committed_len)
            clock.after(seconds, lambda: target.verify(decode, tree))

    decode = Decode(8, on_verdict)
    target.begin(decode, until_len=0)
    return times


def test_a_session_that_comes_back_soon_goes_with_the_others(clock, target):
    """One is back at once, the other 4 ms later: one step for both."""
    first, second = (back_after(seconds, clock, target) for seconds in (0.0001, 0.004))
    clock.run_until(1)
    assert first[-5:] == second[-5:]
    assert first[-1] - first[-2] == pytest.approx(0.015)


def test_nobody_waits_for_one_that_stays_away(clock, target):
    """It is waited for once."""
    first = back_after(0.0001, clock, target)
    back_after(0.004, clock, target, rounds=20)
    clock.run_until(1)
    assert first[-1] - first[-2] == pytest.approx(STEP_S + 0.0001)


def test_a_stale_tree_is_dropped(clock, target):
    verdicts = []
    decode = decode_of(verdicts, clock)
    target.begin(decode, until_len=0)
    clock.run_until(0.1)
    target.verify(decode, plain(8))
    clock.run_until(1)
    assert len(verdicts) == 1


def test_the_time_in_the_queue_is_told(clock, target):
    """Who comes while a step runs waits for its end."""
    verdicts = []
    target.begin(decode_of([], clock), until_len=0)
    late = decode_of(verdicts, clock)
    clock.at(0.004, lambda: target.begin(late, until_len=0))
    clock.run_until(1)
    assert verdicts[0][1].timings.queue_us == pytest.approx(6_000, abs=1)
