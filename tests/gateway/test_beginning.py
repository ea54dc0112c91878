"""What a session begins with is small, pays in what is left of its answer, and leads at once."""

from dataclasses import replace
from random import Random

import pytest

from gateway.beginning import SHORTEST, what_to_begin
from gateway.candidates import Candidates
from gateway.experience import Experience
from gateway.plans import NO_LIMIT
from tests.gateway.played_world import Player, World

# A guess more costs next to nothing, so large plans are best.
GOOD = World(row_us=20.0, grow_us=100.0)
NEVER_RIGHT = (0.0,) * 4


@pytest.fixture(scope="module")
def experience():
    """A gateway that knows a good drafter well."""
    known = Experience()
    player = Player(replace(GOOD, chance=Random(1)), "auto", NO_LIMIT, known)
    player.play(3000)
    player.policy.end()
    return known


def begun(experience, remaining):
    return what_to_begin(experience, Candidates(experience, NO_LIMIT, ""), 0, remaining)


def test_a_session_begins_with_a_small_plan_whatever_is_best(experience):
    best = Candidates(experience, NO_LIMIT, "").best([""])[1].plan
    assert begun(experience, 1000).plan.draft_tokens <= 3 < best.draft_tokens


@pytest.mark.parametrize("remaining", [1, 2, 3])
def test_no_sure_gain_is_begun_that_joining_would_cost(experience, remaining):
    """1.5 plain steps, of which so few tokens cannot save as many."""
    assert begun(experience, 1000) is not None
    assert begun(experience, remaining) is None


def test_nothing_is_tried_in_the_last_tokens_of_an_answer():
    experience = Experience()
    experience.costs.add_plain(10_000.0, GOOD.verify(1))
    assert begun(experience, SHORTEST).is_trial
    assert begun(experience, SHORTEST - 1) is None


def test_a_burst_of_sessions_begins_nothing_where_rows_are_dear():
    """Known from one session alone, in which drafts pay; from eight on they do not."""
    world = World(row_us=1_000.0, grow_us=500.0, hits=(0.6, 0.0, 0.0, 0.0), chance=Random(1))
    player = Player(world, "auto", NO_LIMIT)
    player.play(1000)
    assert player.policy.wants_drafter
    player.policy.end()

    burst = [Player(world, "auto", NO_LIMIT, player.experience) for _ in range(32)]
    assert burst[0].policy.wants_drafter, "alone so far"
    for one in burst[1:]:
        one.play(20)
    assert sum(one.policy.wants_drafter for one in burst) < 8


def leads(player, tokens):
    """Who led in the rounds of so many tokens."""
    end, seen = player.rounds.committed_len + tokens, set()
    while player.rounds.committed_len < end:
        player._step()
        if player.policy.wants_drafter:
            seen.add(player.policy.lead)
    return seen


def test_a_scout_takes_over_only_where_this_session_shows_it_right():
    """However often it was right in others."""
    world = replace(GOOD, rival_hits=(0.95, 0.0, 0.0, 0.0), chance=Random(1))
    other = Player(world, "auto", NO_LIMIT)
    assert "rival" in leads(other, 1000)
    other.policy.end()

    world = replace(GOOD, rival_hits=NEVER_RIGHT, chance=Random(2))
    assert leads(Player(world, "auto", NO_LIMIT, other.experience), 200) == {""}
