"""Prompt lookup copies what followed the last time, on into its own copy if need be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_service.drafters import Draft
from draft_service.drafters.ngram import NgramDrafter, NgramFollower
from protos.messages import Plan
from protos.pairing import Pairing

# Two letters repeat themselves often.
TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def draft(tokens, plan=Plan(steps=5), follower=None):  # noqa: B008 - a frozen value
    return (follower or NgramFollower()).draft(tokens, plan)


def looked_up(tokens, steps):
    """The rule in the plainest way: the longest of the last 4, 3, 2 tokens, at its last place."""
    for length in (4, 3, 2):
        for end in range(len(tokens) - 1, length - 1, -1):
            if len(tokens) >= length and tokens[end - length : end] == tokens[-length:]:
                copied = list(tokens)
                for offset in range(steps):
                    copied.append(copied[end + offset])
                return tuple(copied[len(tokens) :])
    return ()


@given(TEXTS, st.integers(0, 8), st.integers(1, 10), st.integers(1, 4))
def test_a_draft_is_what_followed_the_last_time(tokens, steps, draft_tokens, top_k):
    """A chain within the plan: no deeper than its steps, no more nodes than it allows."""
    drafted = draft(tokens, Plan(steps, top_k, draft_tokens))

    assert drafted.tokens == looked_up(tokens, min(steps, draft_tokens - 1))
    assert drafted.parents == tuple(range(len(drafted.tokens)))
    assert len(drafted.logprobs) == len(drafted.tokens)


@given(TEXTS, st.lists(st.integers(1, 5)))
def test_an_index_that_grew_with_the_session_is_that_of_the_whole(tokens, sizes):
    """So are all the drafts on the way."""
    grown, end = NgramFollower(), 0
    for size in [*sizes, len(tokens)]:
        end = min(end + size, len(tokens))
        assert draft(tokens[:end], follower=grown) == draft(tokens[:end])


def test_a_repetition_is_copied_on():
    text = [1, 2, 3, 4, 5, 6, 7]

    assert draft([*text, 9, 1, 2], Plan(steps=3)).tokens == (3, 4, 5)


def test_the_longer_a_text_agreed_the_likelier_its_copy_is():
    """And what is copied on agrees longer still."""
    text = list(range(1, 20))
    after = [draft([*text, 99, *text[:length]], Plan(steps=4)).logprobs for length in (2, 3, 6, 12)]

    assert after == sorted(after)
    assert all(list(one) == sorted(one) and one[-1] < 0 for one in after)


def test_the_latest_of_several_places_counts():
    assert draft([1, 2, 3, 0, 1, 2, 4, 0, 1, 2], Plan(steps=1)).tokens == (4,)


def test_a_longer_match_counts_more_than_a_later_one():
    assert draft([7, 1, 2, 3, 0, 1, 2, 4, 7, 1, 2], Plan(steps=1)).tokens == (3,)


def test_a_loop_goes_on_for_as_long_as_wanted():
    """Copying runs into its own copy."""
    assert draft([1, 2, 3, 1, 2, 3, 1], Plan(steps=10)).tokens == (2, 3, 1, 2, 3, 1, 2, 3, 1, 2)
    assert draft([5, 5, 5], Plan(steps=4)).tokens == (5, 5, 5, 5)


@pytest.mark.parametrize("tokens", [[1], [1, 2], [1, 1], [1, 2, 3, 4, 5, 6], [1, 2, 1, 3, 1]])
def test_a_text_that_repeats_no_two_tokens_is_not_drafted(tokens):
    assert draft(tokens) == Draft()


def test_it_reads_tokens_only_and_fits_any_target_of_its_vocabulary():
    drafter = NgramDrafter("ngram", 50, 64)

    assert drafter.pairing.tap_layers == ()
    assert drafter.pairing.mismatches(Pairing(576, 50, (2, 15, 27), 3, "f00d", "cafe")) == []
    assert drafter.pairing.mismatches(Pairing(576, 51, (2, 15, 27))) != []


def test_sessions_do_not_share_what_they_saw():
    drafter = NgramDrafter("ngram", 50, 64)
    one, other = drafter.follow(0), drafter.follow(17)
    draft([1, 2, 3, 1, 2], follower=one)

    assert draft([1, 2], follower=other) == Draft()
