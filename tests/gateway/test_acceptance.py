"""A drafter's guesses as they turned out, and what is expected of those to come."""

import math
import random

import pytest

from gateway.acceptance import Acceptance, Reliability, RightGuesses
from gateway.plans import CHAINS, TREES, walk
from protos.messages import DraftTree, Plan

PLAN = Plan(3, 1, 4)


def chain(*probabilities):
    logs = (0.0, *(math.log(one) for one in probabilities))
    return DraftTree.chain(1, (9, *range(len(probabilities))), logprobs=logs)


def taught(rounds=4000, chance=0.7, told=0.5, seed=3):
    """What is known of a drafter whose every guess is right with `chance`, and which tells 0.5."""
    acceptance, dice = Acceptance(), random.Random(seed)
    tree = chain(told, told, told)
    for _ in range(rounds):
        right = [dice.random() < chance for _ in range(3)]
        text = [9, *(token if ok else 99 for token, ok in enumerate(right)), 99]
        acceptance.add(PLAN, tree, walk(tree, text))
    return acceptance


def test_chances_are_what_came_true_not_what_was_told():
    survival = taught().survival(chain(0.5, 0.5, 0.5))

    assert survival == pytest.approx([1, 0.7, 0.49, 0.343], abs=0.07)


def test_before_anything_is_known_a_drafter_is_believed():
    assert Acceptance().survival(chain(0.5, 0.2)) == pytest.approx([1, 0.5, 0.1])


def test_a_drafter_that_tells_no_probabilities_is_as_good_as_it_was():
    reliability = Reliability()
    assert reliability.of(1, None) == 0.5
    for _ in range(500):
        reliability.add(1, None, right=False)
    assert reliability.of(1, None) < 0.03


def test_every_smaller_plan_is_judged_by_the_same_rounds():
    acceptance = taught()
    means = [acceptance.expected(plan)[0] for plan in CHAINS[:3]]

    assert means == pytest.approx([0.7, 1.19, 1.53], abs=0.15)
    assert acceptance.rounds == 4000


def test_deeper_trees_than_were_drafted_are_expected_to_go_on_alike():
    mean, error = taught().expected(Plan(7, 1, 8))
    known, _ = taught().expected(PLAN)

    assert known < mean < 0.7 / 0.3
    assert error < 0.2


def test_of_an_unknown_drafter_nothing_is_expected_and_all_is_possible():
    assert Acceptance().expected(PLAN) == (0.0, math.inf)


def test_rounds_without_a_draft_in_time_count_as_wrong():
    acceptance = taught(rounds=40)
    before, _ = acceptance.expected(PLAN)
    for _ in range(40):
        acceptance.add_none(PLAN)

    assert acceptance.expected(PLAN)[0] == pytest.approx(before / 2, rel=0.01)


def test_the_error_shrinks_with_the_rounds_and_is_never_none():
    guesses, errors = RightGuesses(), []
    assert guesses.error == math.inf
    for count in range(1, 200):
        guesses.add(1)
        if count in (4, 32, 128):
            errors.append(guesses.error)

    assert errors == sorted(errors, reverse=True)
    assert errors[-1] > 0


def test_plans_that_nobody_chooses_from_are_not_kept():
    """Requests may name thousands of them."""
    acceptance = Acceptance()
    tree = chain(0.5, 0.5, 0.5)
    for top_k in range(1, 60):
        acceptance.add(Plan(9, top_k, 64), tree, walk(tree, [9, 99]))

    assert set(acceptance.by_plan) <= {*CHAINS, *TREES}
