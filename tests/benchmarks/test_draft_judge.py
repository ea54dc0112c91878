"""Drafts are judged by what roundings can do, and whatever is more is found wrong."""

from dataclasses import replace
from math import inf

import pytest
import torch

from benchmarks.gpu_check.draft_judge import Judge, missed_by
from benchmarks.gpu_check.draft_sessions import DraftLoad, Table, play_sessions
from benchmarks.gpu_check.drafters import DrafterShape
from benchmarks.gpu_check.grown_tree import GrownTree, whole_plan
from draft_service.drafters.eagle3 import Eagle3Drafter
from draft_service.drafters.eagle3_model import Eagle3Model

SHAPE = DrafterShape("small", 64, 128, 4, 2, 16, 500, 300, 12)
LOADS = [
    DraftLoad(whole_plan(steps, width), sessions=6, context=67, rounds=3)
    for steps, width in ((3, 1), (3, 2))
]
ALLOWED_SUMS = 0.01
"""Over what is allowed: float32 beside bfloat16."""


@pytest.fixture(scope="module")
def checked():
    return SHAPE.made_up(max(load.slots for load in LOADS), torch.device("cpu"))


@pytest.fixture(scope="module")
def judge(checked):
    return Judge(checked)


@pytest.fixture(params=LOADS, ids=str)
def load(request):
    return request.param


@pytest.fixture
def sessions(checked, load):
    return play_sessions(checked.config, load)


def drafted(checked, sessions, load):
    """What the drafter of the draft service drafts in bfloat16, on a CPU."""
    model = Eagle3Model(checked.read(torch.bfloat16), load.slots)
    drafter = Eagle3Drafter("rounded", model, checked.pairing, load.kv_tokens)
    return Table(drafter, sessions, load.plan).round(load.rows)


def test_what_the_reference_drafts_misses_nothing(judge, sessions, load):
    """What is left are sums in another order."""
    alike, error, missed = judge.judge(sessions, judge.drafts(sessions, load), load)
    assert alike == len(sessions)
    assert 0 <= error < ALLOWED_SUMS
    assert 0 <= missed < ALLOWED_SUMS


def test_one_token_of_one_session_that_is_not_the_best_is_found(judge, sessions, load):
    drafts = judge.drafts(sessions, load)
    *tokens, last = drafts[2].tokens
    worse = next(token for token in judge.target_ids if token not in (*tokens, last))
    drafts[2] = replace(drafts[2], tokens=(*tokens, worse))
    alike, _, missed = judge.judge(sessions, drafts, load)
    assert alike == len(sessions) - 1
    assert missed > 1


def test_log_probabilities_beyond_roundings_are_found(judge, sessions, load):
    """Though all trees are the reference's."""
    off = [
        replace(draft, logprobs=tuple(2 * logprob for logprob in draft.logprobs))
        for draft in judge.drafts(sessions, load)
    ]
    alike, error, missed = judge.judge(sessions, off, load)
    assert alike == len(sessions)
    assert error > 1 > missed


def test_what_is_no_tree_of_the_plan_is_wrong(judge, sessions, load):
    drafts = judge.drafts(sessions, load)
    tokens, parents = drafts[0].tokens, drafts[0].parents
    for wrong in (
        {"tokens": (), "parents": (), "logprobs": ()},
        {"tokens": (SHAPE.vocabulary, *tokens[1:])},
        {"parents": (*parents[:-1], 0)},
        {"parents": (*parents[:-1], len(parents))},
    ):
        judged = judge.judge(sessions, [replace(drafts[0], **wrong), *drafts[1:]], load)
        assert judged == (0, inf, inf)


FAULTS = ("taps of the row before", "tokens of the row before", "a norm without its weight")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_drafter_that_computes_something_else_is_wrong(checked, judge, sessions, load, fault):
    faulty, played = checked, sessions
    if fault == "taps of the row before":
        played = [one._replace(taps_TX=one.taps_TX.roll(1, 0)) for one in sessions]
    elif fault == "tokens of the row before":
        played = [one._replace(tokens=[0, *one.tokens[:-1]]) for one in sessions]
    else:
        plain = {"midlayer.hidden_norm.weight": torch.ones(SHAPE.hidden)}
        faulty = checked._replace(tensors=checked.tensors | plain)
    _, error, missed = judge.judge(sessions, drafted(faulty, played, load), load)
    assert error > 1
    assert missed > 1


def test_a_choice_is_missed_by_the_difference_of_scores():
    """Of tokens after a node, and of nodes that might have had children."""
    tree = GrownTree((-1, 0, 0, 1, 1), (9, 0, 1, 2, 3), (0.0,) * 5)
    scores_NV = torch.full((5, 4), -inf)
    scores_NV[0] = torch.tensor([-1.0, -2.0, -3.0, -4.0])
    scores_NV[1] = torch.tensor([-6.0, -7.0, -5.0, -5.5])
    assert missed_by(tree, scores_NV) == 0
    scores_NV[1, 0] = -5.25
    assert missed_by(tree, scores_NV) == 0.25
    scores_NV[0, 0] = -2.5
    assert missed_by(tree, scores_NV) == 0.5
