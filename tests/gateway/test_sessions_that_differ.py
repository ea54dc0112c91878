"""Short answers, one after the other, of which some gain by drafts and others lose.

The costs are those of two cores that target and drafter share: a guess must be right in 42 % of
rounds to pay.
"""

from dataclasses import replace
from functools import cache
from random import Random

import pytest

from gateway.experience import Experience
from gateway.plans import NO_LIMIT
from protos.messages import Plan
from tests.gateway.played_world import Player, World

TOKENS = 96
TWO_CORES = World(
    step_us=19_000.0,
    row_us=2_400.0,
    plain_other_us=750.0,
    other_us=2_000.0,
    extend_us=1_000.0,
    grow_us=2_900.0,
    noise=0.08,
)
# How often a first guess is right.
KINDS = {"copies": 0.3, "chat": 0.4, "code": 0.48, "maths": 0.61}


def answered(world, mode, plan, experience):
    """The tokens of an answer, and how many plain decoding would have had."""
    player = Player(world, mode, plan, experience)
    went = player.play(TOKENS)
    player.policy.end()
    return went.tokens[-1] - went.tokens[0], went.plain_tokens[-1] - went.plain_tokens[0]


def play(mode, plan, seed):
    """Thirty answers of each kind in any order: what each had, as `answered` tells it."""
    chance, experience = Random(seed), Experience()
    kinds = [kind for kind in KINDS for _ in range(30)]
    chance.shuffle(kinds)
    for kind in kinds:
        hit = KINDS[kind] * chance.uniform(0.85, 1.15)
        world = replace(TWO_CORES, hits=(hit, hit / 5, hit / 10, 0.02), chance=chance)
        # A gateway has requests of all modes: those of fixed plans teach how good a drafter is.
        answered(world, "fixed", Plan(1, 1, 2), experience)
        yield kind, answered(world, mode, plan, experience)


@cache
def over_plain(mode, plan):
    """How fast answers of each kind were, plain decoding being 1."""
    had = [one for seed in range(3) for one in play(mode, plan, seed)]
    tokens, plainly = (dict.fromkeys(KINDS, 0.0) for _ in range(2))
    for kind, (count, plain) in had:
        tokens[kind] += count
        plainly[kind] += plain
    return {kind: tokens[kind] / plainly[kind] for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_is_slower_than_plain_decoding(kind):
    assert over_plain("auto", NO_LIMIT)[kind] >= 0.98


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_comes_close_to_a_plan_that_is_always_used(kind):
    fixed = over_plain("fixed", Plan(1, 1, 2))[kind]
    assert over_plain("auto", NO_LIMIT)[kind] >= 0.95 * fixed
