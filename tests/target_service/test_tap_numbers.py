"""A tap is the residual stream at the input of a layer, as transformers shows it."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from protos.messages import SamplingParams
from tests.target_service.played_session import PlayedSession, forward_chain, load_model

LAYERS = 4


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.3,
        attn_implementation="eager",
    )
    reference = LlamaForCausalLM(config).eval()
    path = tmp_path_factory.mktemp("reference")
    reference.save_pretrained(path)
    return load_model(path), reference


def residual_stream(reference, tokens) -> list[torch.Tensor]:
    """Return the input of every layer, and what the final norm is given."""
    last: list[torch.Tensor] = []
    hook = reference.model.norm.register_forward_pre_hook(lambda _, x: last.append(x[0][0]))
    with torch.inference_mode():
        states = reference(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    hook.remove()
    return [*(state[0] for state in states[:LAYERS]), last[0]]


@pytest.mark.parametrize("layers", [(0,), (1, 2, 3), (4,), (3, 0, 4), ()])
def test_a_tap_is_the_input_of_its_layer(pair, layers):
    """Layer number `num_layers` is what leaves the last layer, before the final norm."""
    ours, reference = pair
    tokens = list(range(7, 27))
    stream = residual_stream(reference, tokens)
    expected = torch.cat([stream[i] for i in layers], -1) if layers else torch.empty(20, 0)
    taps = forward_chain(ours, tokens, layers)[1]
    assert taps.shape == (20, 32 * len(layers))
    torch.testing.assert_close(taps, expected, atol=1e-4, rtol=0)


def test_a_layer_too_high_is_seen(pair):
    ours, reference = pair
    stream = residual_stream(reference, list(range(20)))
    for layer in range(LAYERS):
        taps = forward_chain(ours, list(range(20)), (layer,))[1]
        assert (taps - stream[layer + 1]).abs().max() > 0.1


def test_rows_of_a_session_are_those_of_its_committed_tokens(pair):
    """Whatever was drafted: row i is the state of the token at position i."""
    ours, _ = pair
    session = PlayedSession(
        ours, [5, 6, 7], SamplingParams(temperature=0), tap_layers=(1, 3), chunk_len=2
    )
    session.verify()
    for round_index in range(6):
        right = forward_chain(ours, session.session.tokens)[0][-1].argmax()
        session.verify([round_index, int(right), 3], [0, 0, 2])
    committed = session.session.tokens[:-1]
    taps = torch.cat(session.told.taps)
    assert len(session.told.tokens) > 9
    torch.testing.assert_close(taps, forward_chain(ours, committed, (1, 3))[1], atol=1e-5, rtol=0)
