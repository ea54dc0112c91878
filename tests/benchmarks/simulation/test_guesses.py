"""Guesses are right as often as the drafter's quality says, and say how sure they are."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulation.acceptance import Acceptance
from benchmarks.simulation.guesses import Guesser, said_at, verify
from protos.messages import DraftTree, Plan, VerifyTimings

ROUNDS = 3000


def rounds_of(acceptance, plan):
    guesser = Guesser(acceptance, random.Random(1))
    for committed_len in range(10, 10 + ROUNDS):
        tree = guesser.tree(committed_len, plan)
        yield tree, verify(tree, VerifyTimings())


def accept_length(acceptance, plan):
    return 1 + sum(len(verdict.path) for _, verdict in rounds_of(acceptance, plan)) / ROUNDS


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_chains_are_accepted_as_far_as_the_drafter_is_good(steps):
    wanted = Acceptance().accept_length(steps)
    assert accept_length(Acceptance(), Plan(steps)) == pytest.approx(wanted, rel=0.03)


def test_confidences_are_honest():
    """Drafts of which the drafter is 80 % sure are right 80 times of 100."""
    said, right = 0.0, 0
    for tree, verdict in rounds_of(Acceptance(), Plan(1)):
        said += math.exp(tree.logprobs[1])
        right += len(verdict.path)
    assert said / ROUNDS == pytest.approx(right / ROUNDS, abs=0.02)


def test_confidences_tell_rounds_apart():
    """Of the half that the drafter is surer of, more is right."""
    rounds = sorted(rounds_of(Acceptance(), Plan(1)), key=lambda pair: pair[0].logprobs[1])
    doubtful, sure = (
        sum(len(verdict.path) for _, verdict in half)
        for half in (rounds[: ROUNDS // 2], rounds[ROUNDS // 2 :])
    )
    assert sure > 1.2 * doubtful


def test_siblings_catch_misses_if_the_drafter_is_such():
    plan = Plan(2, top_k=3, draft_tokens=9)
    alone = accept_length(Acceptance((0.5, 0.25)), plan)
    helped = accept_length(Acceptance((0.5, 0.25), siblings=0.8), plan)
    assert alone == pytest.approx(1.75, rel=0.05)
    assert helped > alone + 0.3


def test_a_tree_has_the_nodes_that_were_asked_for():
    """Sixteen rows are verified, though siblings are never right."""
    tree, _ = next(rounds_of(Acceptance(), Plan(3, top_k=4, draft_tokens=16)))
    assert len(tree.tokens) == 16


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 4))
def test_a_verdict_is_a_path_of_what_the_target_says(seed, steps, top_k):
    tree = Guesser(Acceptance(siblings=0.5), random.Random(seed)).tree(40, Plan(steps, top_k, 12))
    verdict = verify(tree, VerifyTimings())
    assert verdict.tokens == tuple(said_at(40 + i) for i in range(len(verdict.path) + 1))
    assert [tree.parents[node] for node in verdict.path] == [0, *verdict.path][: len(verdict.path)]


def test_a_draft_behind_a_wrong_one_is_not_accepted():
    wrong = said_at(11) + 100
    tree = DraftTree.chain(11, (said_at(10), wrong, said_at(12)))
    assert verify(tree, VerifyTimings()).path == ()
