"""How far to speculate: never so far that it costs, and nearly as far as pays.

Played in a made-up world whose costs are known, so what would have been best is known as well.
"""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auto_policy import FOR_GOOD, AutoPolicy
from gateway.experience import Experience
from gateway.plans import CHAINS, NO_DRAFTS, NO_LIMIT, TREES, covers
from gateway.policy import FixedPolicy, Wish, policy_for
from protos.messages import DraftTree, Plan
from tests.gateway.played_world import Player, World

FIXED = (*CHAINS[:4], *TREES)
# Some thirty seconds of plain decoding.
LONG = 3000
GOOD = World()
WORLDS = {
    "good drafter": GOOD,
    "rows are free": World(row_us=20.0, grow_us=400.0),
    "poor drafter": World(hits=(0.25, 0.08, 0.04, 0.02)),
    "drafter that is never right": World(hits=(0.0,) * 4),
    "slow drafter": World(grow_us=6_000.0),
    "far drafter": World(other_us=12_000.0),
    "rows are dear": World(row_us=3_000.0),
    "noisy machine": World(noise=0.3),
    "saturated target": World(row_us=600.0, others=31),
}
# What may go wrong while it decodes.
CHANGES = {
    "quality collapses": {"hits": (0.0,) * 4},
    "5 ms later": {"draft_delay_us": 5_000.0},
    "20 ms later": {"draft_delay_us": 20_000.0},
    "100 ms later": {"draft_delay_us": 100_000.0},
    "rows cost more": {"row_us": 3_000.0},
    "drafter gone": {"drafter_open": False},
}


def fresh(world, **changed):
    """The same world from its beginning."""
    return replace(world, chance=World().chance, **changed)


def played(world, mode="auto", plan=NO_LIMIT, tokens=LONG, skip=0):
    """How a session went after its first tokens."""
    player = Player(fresh(world), mode, plan)
    if skip:
        player.play(skip)
    return player.play(tokens)


@cache
def best_fixed(world):
    """How fast the best setting is in a world of that name, plain decoding among them."""
    plans = [played(WORLDS[world], "fixed", plan).over_plain() for plan in FIXED]
    return max(1.0, *plans)


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_nowhere_is_auto_slower_than_plain_decoding(world):
    """From the first token on, with nothing known: at most 2 % in any 30 s."""
    assert played(world, tokens=2 * LONG).worst_window(30.0) >= 0.98


@pytest.mark.parametrize("world", WORLDS)
def test_auto_comes_close_to_the_best_setting(world):
    assert played(WORLDS[world], skip=400).over_plain() >= 0.95 * best_fixed(world)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_no_change_makes_auto_slower_than_plain_decoding(change):
    """Neither when it comes, nor when it goes."""
    player = Player(fresh(GOOD), "auto", NO_LIMIT)
    player.play(LONG)
    for name, value in change.items():
        setattr(player.world, name, value)
    player.play(LONG)
    for name in change:
        setattr(player.world, name, getattr(GOOD, name))
    player.play(LONG)

    assert player.went.worst_window(30.0) >= 0.98


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_pays_again_is_found_again(change):
    player = Player(fresh(GOOD, **change), "auto", NO_LIMIT)
    player.play(LONG)
    for name in change:
        setattr(player.world, name, getattr(GOOD, name))
    player.play(500)

    assert player.play(LONG).over_plain() >= 0.93 * best_fixed("good drafter")


def test_what_one_session_learned_the_next_one_knows():
    """It begins with what pays, where the first had to try."""
    experience = Experience()
    Player(fresh(GOOD), "auto", NO_LIMIT, experience).play(1000)

    player = Player(fresh(GOOD), "auto", NO_LIMIT, experience)

    assert player.rounds.plan.steps
    assert player.play(100).over_plain() > 1.2
    stranger = Player(fresh(GOOD), "auto", NO_LIMIT)
    assert not stranger.rounds.plan.steps


def test_where_it_never_pays_the_next_session_begins_plainly():
    experience, world = Experience(), WORLDS["slow drafter"]
    first = Player(fresh(world), "auto", NO_LIMIT, experience)
    first.play(LONG)
    first.policy.end()

    player = Player(fresh(world), "auto", NO_LIMIT, experience)

    assert not player.rounds.drafters
    assert player.rounds.runs_on


@pytest.mark.parametrize(
    ("hits", "lead"),
    [
        ((0.9, 0.0, 0.0, 0.0), "rival"),
        ((0.3, 0.0, 0.0, 0.0), ""),
        ((0.0, 0.0, 0.0, 0.0), ""),
    ],
)
def test_a_session_finds_the_drafter_that_suits_it(hits, lead):
    """All are compared with the text; only the lead's drafts are verified."""
    player = Player(fresh(GOOD, rival_hits=hits), "auto", NO_LIMIT)
    player.play(300)
    went = player.play(1000)

    best = best_fixed("good drafter")
    if hits[0] in (0.0, 0.9):
        assert player.policy.lead == lead
    if lead:
        assert went.over_plain() > 1.3 * best
    else:
        assert went.over_plain() >= 0.9 * best


def test_a_session_changes_its_drafter_when_the_text_does():
    player = Player(fresh(GOOD, rival_hits=(0.0,) * 4), "auto", NO_LIMIT)
    player.play(600)
    assert player.policy.lead == ""
    player.world.rival_hits = (0.95, 0.0, 0.0, 0.0)
    player.play(600)
    assert player.policy.lead == "rival"
    player.world.rival_hits = (0.0,) * 4
    player.play(600)
    assert player.policy.lead == ""


def test_a_session_that_is_unlike_the_others_is_found_out_early():
    """Scouts tell within some dozens of tokens, without a draft verified."""
    experience = Experience()
    usual = fresh(GOOD, hits=(0.0,) * 4, rival_hits=(0.02,) * 4)
    first = Player(usual, "auto", NO_LIMIT, experience)
    first.play(LONG)
    first.policy.end()
    player = Player(
        fresh(GOOD, hits=(0.0,) * 4, rival_hits=(0.95, 0.0, 0.0, 0.0)), "auto", NO_LIMIT, experience
    )

    player.play(60)
    assert player.policy.lead == "rival"
    assert player.play(500).over_plain() > 2


def test_a_named_drafter_has_no_rivals():
    experience = Experience(rivals=("rival",))
    policy = policy_for(Wish("auto", NO_LIMIT), experience, "mine")

    assert policy.lead == "mine"
    assert not policy.scouts
    assert policy_for(Wish("auto", NO_LIMIT), experience, "").scouts.keys() == {"rival"}


@pytest.mark.parametrize("limits", [Plan(2, 1, 3), Plan(1, 3, 3), Plan(63, 63, 2), Plan(4, 2, 6)])
def test_auto_asks_for_no_more_than_it_may(limits):
    player = Player(fresh(GOOD), "auto", limits)
    asked = set()
    for _ in range(60):
        player.play(10)
        asked.add(player.rounds.plan)

    assert any(plan.steps for plan in asked)
    assert all(covers(limits, plan) for plan in asked if plan.steps)


@pytest.mark.parametrize("limits", [Plan(0), Plan(5, 1, 1)])
def test_where_nothing_may_be_drafted_auto_is_plain_decoding(limits):
    player = Player(fresh(GOOD), "auto", limits)
    player.play(300)

    assert not player.rounds.drafters
    assert player.rounds.runs_on


@given(st.integers(1, 64), st.integers(2, 64), st.integers(1, 10_000))
def test_a_fixed_plan_is_verified_as_far_as_it_goes(num_nodes, draft_tokens, remaining):
    """A node can commit one token at most, and the root is always verified."""
    tree = DraftTree.chain(9, tuple(range(num_nodes)))
    policy = FixedPolicy(Plan(5, 1, draft_tokens), Experience())

    trimmed = policy.trim(tree, remaining)

    assert trimmed == tree.trimmed(len(trimmed.tokens))
    assert len(trimmed.tokens) == max(1, min(num_nodes, draft_tokens, remaining))


@given(st.integers(1, 14), st.integers(1, 20))
def test_what_auto_verifies_is_the_best_of_a_tree(num_nodes, remaining):
    tree = DraftTree.chain(9, tuple(range(num_nodes)), logprobs=(0.0,) * num_nodes)
    player = Player(fresh(WORLDS["rows are dear"]), "auto", NO_LIMIT)
    player.play(30)

    trimmed = player.policy.trim(tree, remaining)

    assert trimmed == tree.trimmed(len(trimmed.tokens))
    assert 1 <= len(trimmed.tokens) <= min(num_nodes, max(remaining, 1))


def test_where_rows_are_dear_unlikely_guesses_are_not_verified():
    """A tree of which the drafter thinks little is cut, one of which it thinks much is not."""
    experience = Experience()
    player = Player(fresh(GOOD, row_us=1_000.0), "auto", NO_LIMIT, experience)
    policy = player.policy
    # What is only looked at is verified whole.
    while player.rounds.committed_len < 2000 or policy._spell is None or policy._spell.looks_around:
        player.play(10)
    sure = DraftTree.chain(9, (1, 2), logprobs=(0.0, -0.5))
    unsure = DraftTree.chain(9, (1, 2), logprobs=(0.0, -3.5))

    assert len(policy.trim(sure, 99).tokens) == 2
    assert len(policy.trim(unsure, 99).tokens) == 1


def test_a_slow_draft_is_waited_for_only_as_long_as_it_may_pay():
    player = Player(fresh(GOOD), "auto", NO_LIMIT)
    player.play(500)

    patience_s = player.policy.patience_s(60.0)

    right = 2 * GOOD.plain_us / 1e6
    assert GOOD.plain_us / 1e6 * 0.9 <= patience_s <= right
    assert player.policy.patience_s(0.001) == 0.001
    assert FixedPolicy(Plan(3), Experience()).patience_s(60.0) == 60.0


def test_sessions_are_counted_while_they_last():
    experience = Experience()
    policies = [
        policy_for(Wish(mode, Plan(3)), experience, "") for mode in ("auto", "fixed", "off")
    ]
    assert experience.num_sessions == 3
    assert [type(policy) for policy in policies] == [AutoPolicy, FixedPolicy, FixedPolicy]
    for policy in policies:
        policy.end()
    assert experience.num_sessions == 0


def test_plain_decoding_asks_nobody():
    policy = policy_for(Wish("off", NO_DRAFTS), Experience(), "")

    assert not policy.wants_drafter
    assert policy.more_plain(0, drafter_open=False, remaining=FOR_GOOD) > 1_000_000
    assert policy.plan(0) == NO_DRAFTS
