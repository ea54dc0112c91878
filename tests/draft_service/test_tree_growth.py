"""A tree is the best nodes of a beam search, in a stable order, whatever is left out on the way."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_service.drafters import Draft
from draft_service.tree_growth import Candidate, TreeGrowth, max_rows
from kernels import tree
from protos.messages import Plan

PLANS = st.builds(Plan, st.integers(0, 7), st.integers(1, 6), st.integers(1, 30))
SEEDS = st.integers(0, 2**32)


class Language:
    """What may follow a path of tokens, best first. Scores are coarse: many of them tie."""

    def __init__(self, seed, vocab=8, likely=1.0):
        self.seed, self.vocab, self.likely = seed, vocab, likely

    def __call__(self, path):
        draw = random.Random(f"{self.seed} {path}")
        tokens = draw.sample(range(self.vocab), self.vocab)
        scores = [self._score(draw) for _ in tokens]
        ranked = sorted(scores, reverse=True)
        return [
            Candidate(token, score, -draw.random())
            for token, score in zip(tokens, ranked, strict=True)
        ]

    def _score(self, draw):
        return -draw.randrange(6) / 2 if draw.random() < self.likely else -math.inf


def grow(plan, language):
    """Grow a tree; the model of it knows the path of every frontier node by its parents."""
    growth = TreeGrowth(plan)
    tokens_of = {}
    while growth.frontier:
        paths = growth.paths() if growth.depth else [()]
        tokens_of |= {
            path[-1]: node.token for path, node in zip(paths, growth.frontier, strict=True) if path
        }
        texts = [tuple(tokens_of[row] for row in path) for path in paths]
        growth.expand([language(text)[: growth.width] for text in texts])
    return growth.draft()


def texts_of(draft):
    """Return what each node's path says, in the order of the nodes."""
    tokens = (None, *draft.tokens)
    paths = tree.paths([-1, *draft.parents])[1:]
    return [tuple(tokens[node] for node in path[1:]) for path in paths]


def plainly(plan, language):
    """EAGLE-2 as SGLang has it: grow all levels, rank all nodes at the end."""
    nodes, level = [], [((), 0.0)]
    for _ in range(plan.steps):
        level = [
            ((*text, child.token), score + child.score)
            for text, score in level
            for child in language(text)[: plan.top_k]
            if child.score > -math.inf
        ]
        nodes += level
        level = sorted(level, key=lambda node: -node[1])[: plan.top_k]
    best = sorted(nodes, key=lambda node: -node[1])
    return [text for text, _ in best[: plan.draft_tokens - 1]], len(nodes)


@given(PLANS, SEEDS, st.sampled_from([1.0, 0.6]))
def test_it_is_the_tree_of_eagle_2(plan, seed, likely):
    """Though nodes that cannot be kept are dropped, and never run, as soon as that is known."""
    language = Language(seed, likely=likely)
    draft = grow(plan, language)
    expected, available = plainly(plan, language)

    assert texts_of(draft) == expected
    assert len(draft.tokens) == min(plan.draft_tokens - 1, available)


@given(PLANS, SEEDS)
def test_parents_come_first_and_nodes_bring_their_own_log_probability(plan, seed):
    language = Language(seed)
    draft = grow(plan, language)

    assert all(parent <= place for place, parent in enumerate(draft.parents))
    for text, logprob in zip(texts_of(draft), draft.logprobs, strict=True):
        (found,) = [one for one in language(text[:-1]) if one.token == text[-1]]
        assert logprob == found.logprob


@given(PLANS, SEEDS, st.integers(1, 30))
def test_the_first_nodes_are_the_tree_of_fewer(plan, seed, draft_tokens):
    """So a tree can be trimmed from its end."""
    large, small = (
        grow(Plan(plan.steps, plan.top_k, number), Language(seed)) for number in (64, draft_tokens)
    )

    count = len(small.tokens)
    assert count == min(draft_tokens - 1, len(large.tokens))
    assert (small.tokens, small.parents) == (large.tokens[:count], large.parents[:count])


@given(st.integers(0, 7), st.integers(1, 10), SEEDS)
def test_one_child_a_node_makes_a_chain(steps, draft_tokens, seed):
    """Of the best token after each other; no row is run for a guess that is not kept."""
    language, text = Language(seed), ()
    draft = grow(Plan(steps, 1, draft_tokens), language)
    for token in draft.tokens:
        assert token == language(text)[0].token
        text = (*text, token)

    count = min(steps, draft_tokens - 1)
    assert draft.parents == tuple(range(count))
    assert draft.num_rows == max(count - 1, 0)


@given(st.integers(1, 5), st.integers(2, 6), SEEDS)
def test_the_likeliest_chain_is_in_the_tree_if_there_is_room(steps, top_k, seed):
    """Of all that a beam finds, the best node of every depth."""
    draft = grow(Plan(steps, top_k, 64), Language(seed))
    texts, all_fit = texts_of(draft), top_k + (steps - 1) * top_k**2 < 64
    beam = [((), 0.0)]
    for _ in range(steps):
        beam = sorted(
            (
                ((*text, child.token), score + child.score)
                for text, score in beam
                for child in Language(seed)(text)[:top_k]
            ),
            key=lambda node: -node[1],
        )[:top_k]
        assert not all_fit or beam[0][0] in texts


@given(PLANS, SEEDS)
def test_no_more_rows_are_run_than_there_is_room_for(plan, seed):
    assert grow(plan, Language(seed)).num_rows <= max_rows(plan)


@given(PLANS)
def test_room_is_for_every_level_but_the_last(plan):
    """Its nodes are chosen from the rows of the level above."""
    room = max(min(plan.steps, plan.draft_tokens - 1) - 1, 0) * min(
        plan.top_k, plan.draft_tokens - 1
    )
    assert max_rows(plan) == room


def test_an_unlikely_branch_is_not_followed():
    """All three nodes that are kept lie on the likely one."""

    def language(path):
        return [Candidate(1, -0.1, -0.1), Candidate(2, -5.0, -5.0)]

    assert texts_of(grow(Plan(3, 2, 4), language)) == [(1,), (1, 1), (1, 1, 1)]


def test_of_equals_the_earlier_node_is_kept():
    def language(path):
        return [Candidate(token, -1.0 if len(path) == 0 else 0.0, 0.0) for token in (5, 3, 4)]

    assert texts_of(grow(Plan(2, 3, 6), language)) == [(5,), (3,), (4,), (5, 5), (5, 3)]


@pytest.mark.parametrize("score", [-math.inf, math.nan])
def test_what_may_not_follow_is_no_node(score):
    def language(path):
        return [Candidate(1, score, score)]

    assert grow(Plan(3, 2, 8), language) == Draft()


@pytest.mark.parametrize("plan", [Plan(0), Plan(3, 2, 1)])
def test_a_plan_without_room_has_no_frontier(plan):
    assert TreeGrowth(plan).frontier == []
    assert TreeGrowth(plan).draft() == Draft()
