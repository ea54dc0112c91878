"""The engine's laws, on latent attention and experts: whatever is drafted and whoever is beside it,
a session is told what it is told alone.

A row chooses its experts, and shares them with whoever else chose them: that is what these models
add to the company of a row. The same means: the same tokens, and bitwise the same logprobs
and taps.
"""

import random
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from kernels import decoder
from target_service.models.target_model import TargetModel
from target_service.weights import read_config
from tests.target_service.engine_cases import NUM_NEW, SAMPLINGS, VOCAB, play, prompt_of
from tests.target_service.played_batch import Batch
from tests.target_service.played_session import Told, forward_chain, load_model
from tests.target_service.test_batches import batch_of
from tests.target_service.test_engine import assert_same_rows, speculate
from tests.tiny_deepseek import YARN, nested, quantized, write_checkpoint, write_tiny_deepseek

MODELS = ("float32", "int4")
CASES = [("greedy", 1), ("nucleus", 17), ("nucleus", 64), ("everything", 130)]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, TargetModel]:
    """Groups of experts in float32; as Kimi-K2.5, bfloat16 with int4 experts."""
    path = tmp_path_factory.mktemp("experts")
    groups = {"n_routed_experts": 12, "n_group": 4, "topk_group": 2}
    write_tiny_deepseek(path / "float32", vocab_size=VOCAB, num_hidden_layers=3, **groups)
    write_tiny_deepseek(path / "plain", vocab_size=VOCAB, dtype=torch.bfloat16, rope_scaling=YARN)
    stored = read_config(path / "plain"), load_file(path / "plain" / "model.safetensors")
    write_checkpoint(path / "int4", *nested(*quantized(*stored)))
    return {name: load_model(path / name) for name in MODELS}


@pytest.fixture(scope="module")
def alone(models):
    """What plain decoding tells, one row at a time from the first token of the prompt on."""

    @cache
    def told(model: str, sampling: str, prompt_len: int) -> Told:
        return play(models[model], sampling, prompt_len).decode(NUM_NEW)

    return told


@settings(max_examples=8)
@given(
    model=st.sampled_from(MODELS),
    case=st.sampled_from(CASES),
    chunk_len=st.integers(1, 140),
    nodes=st.sampled_from([0, 3, 16, 63]),
    rng=st.randoms(use_true_random=True),
)
def test_any_cut_into_chunks_steps_and_trees_tells_the_same(
    models, alone, model, case, chunk_len, nodes, rng
):
    reference = alone(model, *case)
    session = play(models[model], *case, chunk_len)
    speculate(session, reference.tokens, rng, nodes).assert_begins_as(reference)


@settings(max_examples=6)
@given(
    model=st.sampled_from(MODELS),
    cases=st.lists(st.sampled_from(CASES), min_size=2, max_size=6),
    num_pages=st.sampled_from([5, 30]),
    nodes=st.sampled_from([0, 5, 63]),
    rng=st.randoms(use_true_random=True),
)
def test_sessions_in_any_company_tell_what_each_tells_alone(
    models, alone, model, cases, num_pages, nodes, rng
):
    batch = batch_of(models[model], num_pages)
    clients = [
        batch.open(f"s{i}", SAMPLINGS[sampling], prompt_of(length), alone(model, sampling, length))
        for i, (sampling, length) in enumerate(cases)
    ]
    told_all = run_all(batch, clients, rng, nodes)
    assert told_all
    for client in clients:
        client.told.assert_begins_as(client.reference)


def run_all(batch: Batch, clients, rng: random.Random, nodes: int) -> bool:
    """Step until every client has its answer, and leaves. Returns whether all do."""
    waiting = list(clients)
    for step in range(2000):
        for client in list(waiting):
            if client.done:
                batch.close(client)
                waiting.remove(client)
            else:
                batch.offer(client, rng, nodes)
        if not waiting:
            return True
        batch.step(step / 10)
    return False


@pytest.mark.parametrize("model", MODELS)
def test_prompts_in_chunks_are_prompts_at_once(models, model):
    prompt = prompt_of(130)
    whole_RV, _ = forward_chain(models[model], prompt)
    told = [play(models[model], "greedy", 130, chunk_len).decode(1) for chunk_len in (1, 40, 130)]
    assert [one.tokens for one in told] == [[int(whole_RV[-1].argmax())]] * 3
    for one in told[1:]:
        one.assert_begins_as(told[0])


@pytest.mark.parametrize("model", MODELS)
def test_after_accepting_a_later_branch_the_cache_is_that_of_a_fresh_prefill(models, alone, model):
    """Keys that are their own values are moved once: where slots overlap, twice is wrong."""
    reference = alone(model, "nucleus", 64)
    session = play(models[model], "nucleus", 64, chunk_len=40)
    while len(session.told.tokens) < 18:
        future = reference.tokens[len(session.told.tokens) :][:4]
        wrong = (future[0] + 1) % VOCAB
        verdict = session.verify([wrong, *future], [0, 0, 2, 3, 4][: 1 + len(future)]).verdict
        assert verdict.path in ((), (2, 3, 4, 5))
    fresh = play(models[model], "nucleus", 64, chunk_len=128)
    fresh.force(session.told.tokens)
    assert fresh.verify().verdict.top_logprobs == session.verify().verdict.top_logprobs
    assert_same_rows(session, fresh)


def test_experts_that_felt_who_is_beside_a_row_would_be_seen(models, alone, monkeypatch):
    """Negative control: a millionth of what another row was told is found."""
    right = decoder._feed_forward

    def mistaken(x_RH, layer, rows):
        y_RH = right(x_RH, layer, rows)
        if layer.experts is not None and rows > 1:
            y_RH[1:rows] += 1e-6 * y_RH[:1]
        return y_RH

    reference = alone("float32", "nucleus", 64)
    monkeypatch.setattr(decoder, "_feed_forward", mistaken)
    with pytest.raises(AssertionError):
        play(models["float32"], "nucleus", 64, chunk_len=40).decode(3).assert_begins_as(reference)
