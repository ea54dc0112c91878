"""What a verdict says beside its tokens: logprobs, the likeliest tokens, rows; and its taps."""

from dataclasses import replace

import pytest
import torch

from protos.messages import SamplingParams
from tests.target_service.engine_cases import play, prompt_of
from tests.target_service.played_session import PlayedSession, forward_chain


def test_logprobs_are_those_of_the_model_before_sampling(models):
    """Natural logarithms at temperature 1, whatever shaped the choice."""
    session = play(models["float32"], "everything", 17, chunk_len=64)
    verdict = session.verify().verdict
    logits_RV, _ = forward_chain(models["float32"], prompt_of(17))
    expected_V = logits_RV[-1].double().log_softmax(-1)
    torch.testing.assert_close(
        torch.tensor(verdict.logprobs[0]).double(),
        expected_V[verdict.tokens[0]],
        atol=1e-5,
        rtol=0,
    )
    top = verdict.top_logprobs[0]
    assert list(top.token_ids) == expected_V.topk(20).indices.tolist()
    torch.testing.assert_close(
        torch.tensor(top.logprobs).double(), expected_V.topk(20).values, atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("count", [None, 0, 1, 20])
def test_as_many_top_logprobs_as_asked_for_one_list_a_token(models, count):
    sampling = SamplingParams(temperature=0, top_logprobs=count)
    session = PlayedSession(models["float32"], prompt_of(5), sampling, chunk_len=64)
    first = session.verify().verdict
    verdict = session.verify(first.tokens, [0]).verdict
    assert len(verdict.top_logprobs) == (len(verdict.tokens) if count else 0)
    assert all(len(top.token_ids) == len(top.logprobs) == count for top in verdict.top_logprobs)


def test_a_greedy_token_is_the_likeliest_one(plain):
    told = plain("float32", "greedy", 17)
    assert told.tokens == [top.token_ids[0] for top in told.top_logprobs]
    assert told.logprobs == [top.logprobs[0] for top in told.top_logprobs]


def test_rows_count_tokens_not_padding(models):
    session = play(models["float32"], "greedy", 17, chunk_len=64)
    assert session.verify().verdict.timings.rows == 17
    assert session.verify([1, 2], [0, 0]).verdict.timings.rows == 3


def test_a_chunk_of_a_prompt_has_no_verdict(models):
    session = play(models["float32"], "greedy", 17, chunk_len=10)
    (outcome,) = session.engine.step([replace(session.session.next_rows(10), pages=session.pages)])
    assert outcome.verdict is None
    assert len(outcome.taps_KX) == 10


def test_taps_are_of_rows_that_stay_in_the_cache(models, plain):
    future = plain("float32", "greedy", 17).tokens
    session = play(models["float32"], "greedy", 17, chunk_len=64)
    session.verify()
    outcome = session.verify([1, future[1], 1], [0, 0, 2])
    assert (outcome.verdict.path, len(outcome.taps_KX)) == ((2,), 2)
    assert session.session.cached_len == 17 + 2
