"""A draft is scored by what the target committed after it, however it came to be committed."""

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from draft_service.drafters import Draft
from draft_service.scoring import DraftedRounds, Scored
from protos.messages import Plan
from tests.draft_service.noting_drafter import NotingDrafter, following, frame

CHAIN = Draft((5, 6, 7), (0, 1, 2))
TREE = Draft((5, 8, 6, 9), (0, 0, 1, 2))
PLAN = Plan(steps=3, top_k=2, draft_tokens=8)


def score(draft: Draft, *following_tokens: int, plan: Plan = PLAN) -> list[Scored]:
    rounds = DraftedRounds()
    rounds.draft(2, draft, plan)
    return rounds.commit([1, 4, *following_tokens])


def test_a_draft_is_right_as_far_as_its_path_was_committed():
    cases = [((5, 6, 7), 3), ((5, 6, 1), 2), ((5, 1, 7), 1), ((1, 6, 7), 0)]
    assert [score(CHAIN, *tokens)[0].accepted for tokens, _ in cases] == [n for _, n in cases]


def test_a_tree_is_right_by_any_of_its_branches():
    assert [score(TREE, *tokens)[0].accepted for tokens in ((5, 6, 0), (8, 9, 0), (8, 6, 0))] == [
        2,
        2,
        1,
    ]
    assert score(TREE, 8, 9, 0)[0].guesses == (5, 8)


def test_it_waits_until_all_that_it_could_have_drafted_is_known():
    """A draft that is wrong already is not counted before one that may still be right would be."""
    assert score(CHAIN, 1, 1) == []
    assert len(score(CHAIN, 1, 1, 1)) == 1


def test_an_empty_draft_is_a_round_without_guesses():
    assert score(Draft(), 5, 6, 7) == [Scored(2, (), 0, (4, 5, 6, 7))]


def test_a_plan_that_became_shallower_ends_what_can_be_right():
    assert score(CHAIN, 5, 6, 7, plan=Plan(steps=1))[0].accepted == 1


def test_a_round_counts_once():
    rounds = DraftedRounds()
    for draft in (Draft((9,), (0,)), CHAIN):
        rounds.draft(2, draft, PLAN)
    first = rounds.commit([1, 4, 5, 6, 7])

    assert [scored.accepted for scored in first] == [3]
    assert rounds.commit([1, 4, 5, 6, 7, 8]) == []


@given(st.randoms(use_true_random=False))
def test_how_much_was_committed_at_once_does_not_matter(chance: random.Random):
    """Trimmed to nothing or verified whole: a draft made of the same state scores the same."""
    text = [chance.randrange(3) for _ in range(40)]
    drafts = {at: Draft((*text[at : at + 2], 0), (0, 1, 2)) for at in range(2, 37)}
    found = []
    for most in (1, 4):
        rounds, at, scores = DraftedRounds(), 2, {}
        while at < 37:
            rounds.draft(at, drafts[at], PLAN)
            at = min(at + chance.randint(1, most), 40)
            scores |= {one.committed_len: one for one in rounds.commit(text[:at])}
        scores |= {one.committed_len: one for one in rounds.commit(text)}
        found.append(scores)

    assert {at: found[0][at] for at in found[1]} == found[1]
    assert all(one.accepted >= 2 for one in found[0].values())


def test_a_followed_session_is_scored_as_its_frames_come():
    """Its drafter always guesses (1, 2) and 3 below 1; the rounds come in order."""
    followed = following(NotingDrafter())
    draft = followed.drafter.given
    scored, row = [], 0
    for tokens in ([8, 9], [1, 3], [4], [2, 1, 3], [7, 7, 7]):
        followed.arrive(frame(row, tokens), 0)
        row += len(tokens)
        followed.next_rows(100)
        scored += followed.take_scored()
        followed.tree(draft, None)

    assert [(one.committed_len, one.accepted) for one in scored] == [(3, 2), (5, 0), (6, 1), (9, 0)]
    assert all(left.committed_len < right.committed_len for left, right in pairwise(scored))
