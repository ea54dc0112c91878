"""A draft service drafts for the newest state, for all that have come at once."""

import random

import pytest

from benchmarks.simulation.acceptance import Acceptance
from benchmarks.simulation.clock import Clock, Machine
from benchmarks.simulation.drafter import Drafter, Following
from benchmarks.simulation.guesses import Guesser
from benchmarks.simulation.hardware import Drafting
from benchmarks.simulation.target import Frame
from protos.messages import Plan


@pytest.fixture
def clock():
    return Clock()


def drafter_of(clock, **costs):
    return Drafter(clock, Machine(clock), Drafting(extend_ms=2.0, step_ms=1.0, **costs))


def following_of(trees, clock, plan=Plan(3)):  # noqa: B008
    guesser = Guesser(Acceptance(), random.Random(0))
    return Following(plan, guesser, lambda tree: trees.append((clock.now, tree)))


def test_a_tree_takes_its_taps_and_its_further_steps(clock):
    """Two for the taps and the first level, one for each of the two others."""
    trees, drafter = [], drafter_of(clock)
    drafter.arrive(following_of(trees, clock), Frame(20, 3))
    clock.run_until(1)
    (at, tree), timings = trees[0], trees[0][1].timings
    assert at == pytest.approx(0.004)
    assert tree.committed_len == 20
    assert (timings.queue_us, timings.extend_us, timings.grow_us) == (0, 2000, 2000)


def test_what_comes_during_a_batch_joins_the_next(clock):
    trees, drafter = [], drafter_of(clock)
    for at in (0.0, 0.001, 0.002):
        following = following_of(trees, clock)
        clock.at(at, lambda f=following: drafter.arrive(f, Frame(20, 1)))
    clock.run_until(1)
    assert [at for at, _ in trees] == pytest.approx([0.004, 0.008, 0.008])
    assert [tree.timings.queue_us for _, tree in trees] == pytest.approx([0, 3000, 2000], abs=1)


def test_no_tree_is_sent_for_a_state_that_has_passed(clock):
    trees, drafter = [], drafter_of(clock)
    following = following_of(trees, clock)
    drafter.arrive(following, Frame(20, 1))
    clock.at(0.001, lambda: drafter.arrive(following, Frame(22, 2)))
    clock.run_until(1)
    assert [tree.committed_len for _, tree in trees] == [22]


def test_a_plan_of_no_steps_only_takes_in_taps(clock):
    """The drafter stays warm."""
    trees, drafter = [], drafter_of(clock)
    drafter.arrive(following_of(trees, clock, Plan(0)), Frame(20, 1))
    clock.run_until(1)
    assert trees == []


def test_who_shared_the_last_batch_is_waited_for_a_moment(clock):
    """Two sessions, of which one comes 0.1 ms later the second time: one batch, not two."""
    trees, drafter = [], drafter_of(clock, gather_ms=0.3)
    first, second = (following_of(trees, clock) for _ in range(2))
    for at, one, length in ((0, first, 20), (0, second, 20), (1, first, 21), (1.0001, second, 21)):
        clock.at(at, lambda one=one, length=length: drafter.arrive(one, Frame(length, 1)))
    clock.run_until(2)
    assert [at for at, _ in trees[:2]] == pytest.approx([trees[0][0]] * 2)
    assert [at for at, _ in trees[2:]] == pytest.approx([trees[2][0]] * 2)
    assert trees[2][0] == pytest.approx(1.0001 + trees[0][0])


def test_nobody_else_is_waited_for(clock):
    """A session alone drafts at once, and one that left is missed no more."""
    trees, drafter = [], drafter_of(clock, gather_ms=100.0)
    first, second = (following_of(trees, clock) for _ in range(2))
    for one in (first, second):
        clock.at(0, lambda one=one: drafter.arrive(one, Frame(20, 1)))
    clock.at(0.5, lambda: drafter.close(second))
    clock.at(1, lambda: drafter.arrive(first, Frame(21, 1)))
    clock.run_until(2)
    assert trees[-1][0] == pytest.approx(1 + trees[0][0])
