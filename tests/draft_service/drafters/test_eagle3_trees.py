"""A tree's nodes are what a chain along their path would be, bit for bit."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draft_service.drafters import eagle3_growth
from kernels import tree
from kernels.sampling import agreement_tokens
from protos.messages import Plan, SamplingParams
from tests.draft_service.drafters.followed import Followed
from tests.draft_service.drafters.played_session import (
    HIDDEN,
    LAYERS,
    VOCAB,
    PlayedSession,
    load,
)
from tests.tiny_models import write_tiny_eagle3

PLANS = st.builds(Plan, st.integers(1, 6), st.integers(1, 6), st.integers(2, 64))
SAMPLINGS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.5]),
    top_k=st.sampled_from([0, 3, 20]),
    top_p=st.sampled_from([1.0, 0.8]),
    seed=st.integers(0, 2**64 - 1),
)
# Prompts that end within a page, at its edge, and beside it.
LENGTHS = st.sampled_from([2, 21, 60, 64, 65, 66, 100, 129])
seeds = st.integers(0, 1000)
drawn = settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])


def followed(drafter, session):
    """Return a session whose committed rows are taken in."""
    one = Followed.by(drafter)
    one.extend(0, session.tokens[1:], session.taps())
    return one


def forced_chain(one, session, sampling, tokens, further=0):
    """Return a chain that is made to take these tokens, and then goes on by itself."""
    left = list(tokens)

    def choose(logits, *how):
        return torch.tensor([left.pop(0)]) if left else agreement_tokens(logits, *how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eagle3_growth, "agreement_tokens", choose)
        return one.draft(session.tokens, Plan(len(tokens) + further), sampling)


def texts_of(draft):
    tokens = (None, *draft.tokens)
    paths = tree.paths([-1, *draft.parents])[1:]
    return [tuple(tokens[node] for node in path[1:]) for path in paths]


@drawn
@given(plan=PLANS, sampling=SAMPLINGS, length=LENGTHS, seed=seeds, data=st.data())
def test_a_node_has_the_bits_of_its_path_drafted_as_a_chain(
    everywhere, plan, sampling, length, seed, data
):
    session = PlayedSession(seed=seed, prompt_len=length)
    one = followed(everywhere, session)
    draft = one.draft(session.tokens, plan, sampling)
    logprob_of = dict(zip(texts_of(draft), draft.logprobs, strict=True))

    text = data.draw(st.sampled_from(list(logprob_of)))
    path = [text[: depth + 1] for depth in range(len(text))]

    chain = forced_chain(one, session, sampling, text)

    assert chain.logprobs == tuple(logprob_of[part] for part in path)
    one.follower.close()


@drawn
@given(plan=PLANS, sampling=SAMPLINGS, length=LENGTHS, seed=seeds, data=st.data())
def test_the_first_child_of_a_node_is_what_the_target_would_choose(
    everywhere, plan, sampling, length, seed, data
):
    """Were it this drafter: it is the token with which a chain goes on."""
    session = PlayedSession(seed=seed, prompt_len=length)
    one = followed(everywhere, session)
    first_child = {}
    for text in texts_of(one.draft(session.tokens, plan, sampling)):
        first_child.setdefault(text[:-1], text[-1])

    text = data.draw(st.sampled_from(list(first_child)))

    assert forced_chain(one, session, sampling, text, 1).tokens == (*text, first_child[text])
    one.follower.close()


@drawn
@given(plan=PLANS, sampling=SAMPLINGS, seed=seeds, other=PLANS)
def test_trees_leave_no_trace(everywhere, plan, sampling, seed, other):
    """Neither in the next tree of the same state, nor after more rows are real."""
    session = PlayedSession(seed=seed)
    one, fresh = followed(everywhere, session), Followed.by(everywhere)
    draft = one.draft(session.tokens, plan, sampling)
    one.draft(session.tokens, other, sampling)
    assert one.draft(session.tokens, plan, sampling) == draft

    rows = len(session.tokens) - 1
    session.commit(list(draft.tokens[:1]))
    one.extend(rows, session.tokens[rows + 1 :], session.taps()[rows:])
    fresh.extend(0, session.tokens[1:], session.taps())
    assert one.draft(session.tokens, other, sampling) == fresh.draft(
        session.tokens, other, sampling
    )
    one.follower.close()
    fresh.follower.close()


def test_without_noise_a_level_holds_the_likeliest_tokens(everywhere):
    session = PlayedSession()
    one = followed(everywhere, session)

    draft = one.draft(session.tokens, Plan(1, 63, 64), SamplingParams(temperature=0))

    assert len(set(draft.tokens)) == 63
    assert draft.parents == (0,) * 63
    assert list(draft.logprobs) == sorted(draft.logprobs, reverse=True)


@pytest.mark.parametrize("draft_tokens", [2, 5, 16, 64])
def test_a_tree_has_as_many_nodes_as_are_wanted(everywhere, draft_tokens):
    session = PlayedSession()

    draft = followed(everywhere, session).draft(
        session.tokens, Plan(6, 8, draft_tokens), SamplingParams(temperature=0)
    )

    assert len(draft.tokens) == draft_tokens - 1


def test_of_filtered_tokens_there_are_no_nodes(everywhere):
    """top_k leaves two tokens a position: there are no more children."""
    session = PlayedSession()

    draft = followed(everywhere, session).draft(
        session.tokens, Plan(2, 4, 64), SamplingParams(top_k=2, seed=5)
    )

    assert len(draft.tokens) == 2 + 2 * 2


def test_a_drafter_of_few_tokens_fills_trees_with_those(tmp_path):
    write_tiny_eagle3(
        tmp_path, hidden=HIDDEN, vocab=VOCAB, target_layers=LAYERS, draft_vocab_size=3
    )
    session, drafter = PlayedSession(), load(tmp_path)

    draft = followed(drafter, session).draft(
        session.tokens, Plan(2, 8, 64), SamplingParams(temperature=0)
    )

    assert len(draft.tokens) == 3 + 3 * 3
    assert len(set(draft.tokens)) == 3


def test_pages_of_guesses_are_free_when_the_tree_is_grown(everywhere):
    session = PlayedSession()
    used = everywhere.kv_usage.used
    one = followed(everywhere, session)
    one.draft(session.tokens, Plan(20, 10, 64), SamplingParams(temperature=0))

    assert everywhere.kv_usage.used == used + 1
