"""A checkpoint that is not what its config or its target says is refused, with both values."""

import re

import pytest
import torch

from draft_service.drafters.eagle3 import Eagle3Drafter
from tests.draft_service.drafters.played_session import (
    HIDDEN,
    LAYERS,
    VOCAB,
    load,
    target_side,
    write_target,
)
from tests.tiny_models import reconfigure, replace_tensors, write_tiny_eagle3

sizes = {"hidden": HIDDEN, "vocab": VOCAB, "target_layers": LAYERS}


@pytest.fixture
def drafter_dir(tmp_path):
    return write_tiny_eagle3(tmp_path / "drafter", **sizes)


def test_vocabularies_must_be_equally_large(drafter_dir):
    with pytest.raises(ValueError, match="vocab_size: the drafter has 97, the target has 98"):
        load(drafter_dir, vocab_size=98)


def test_the_target_must_be_as_wide_as_trained_for(drafter_dir):
    with pytest.raises(
        ValueError, match=r"target_hidden_size: the drafter has 32, the target .* 48"
    ):
        load(drafter_dir, hidden_size=48)


@pytest.mark.parametrize("taps", [1, 4])
def test_fc_must_take_all_taps(drafter_dir, taps):
    """Else `fc` would read other columns than it was trained on, or none at all."""
    reconfigure(drafter_dir, eagle_aux_hidden_state_layer_ids=list(range(taps)))

    with pytest.raises(ValueError, match=rf"takes 96 inputs, but {taps} taps .* make {32 * taps}"):
        load(drafter_dir)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("embed_tokens.weight", [97, 16], [97, 32]),
        ("embed_tokens.weight", [96, 32], [97, 32]),
        ("lm_head.weight", [96, 32], [97, 32]),
        ("fc.weight", [16, 96], [32, 96]),
        ("midlayer.self_attn.q_proj.weight", [32, 32], [32, 64]),
        ("midlayer.self_attn.k_proj.weight", [32, 64], [16, 64]),
        ("midlayer.mlp.down_proj.weight", [32, 32], [32, 64]),
        ("midlayer.hidden_norm.weight", [64], [32]),
    ],
)
def test_tensors_must_have_the_shape_that_the_config_promises(drafter_dir, name, shape, expected):
    replace_tensors(drafter_dir, {name: torch.zeros(shape)})

    with pytest.raises(
        ValueError, match=re.escape(f"{name} has shape {shape}, expected {expected}")
    ):
        load(drafter_dir)


@pytest.mark.parametrize(
    "name",
    ["fc.weight", "norm.weight", "midlayer.mlp.up_proj.weight", "midlayer.hidden_norm.weight"],
)
def test_a_missing_tensor_is_named(tmp_path, name):
    write_tiny_eagle3(tmp_path, **sizes, without=[name])

    with pytest.raises(ValueError, match=f"has no tensor '{name}'"):
        load(tmp_path)


def test_a_bias_that_the_config_promises_must_be_there(drafter_dir):
    reconfigure(drafter_dir, bias=True)

    with pytest.raises(ValueError, match=r"no tensor 'fc\.bias'"):
        load(drafter_dir)


@pytest.mark.parametrize("name", ["fc_norm.0.weight", "input_norm.weight", "midlayer.mlp.gate"])
def test_a_tensor_without_use_is_refused(drafter_dir, name):
    """A norm that the config forgot would otherwise be skipped in silence."""
    replace_tensors(drafter_dir, {name: torch.ones(32)})

    with pytest.raises(ValueError, match=rf"no use for these tensors .*'{name}'"):
        load(drafter_dir)


def test_quantized_weights_are_refused(drafter_dir):
    replace_tensors(drafter_dir, {"norm.weight": torch.ones(32, dtype=torch.int8)})

    with pytest.raises(
        ValueError, match=r"norm\.weight has dtype torch\.int8, supported: .*bfloat16"
    ):
        load(drafter_dir)


@pytest.mark.parametrize(
    ("d2t", "message"),
    [
        (torch.zeros(49, dtype=torch.int64), r"shape \[49\], but draft_vocab_size is 50"),
        (torch.full((50,), 48), "maps draft token 49 to 97, outside .* of 97"),
        (-torch.arange(50) - 1, "maps draft token 0 to -1, outside .* of 97"),
    ],
)
def test_every_draft_token_must_be_one_of_the_target(tmp_path, d2t, message):
    write_tiny_eagle3(tmp_path, **sizes, draft_vocab_size=50)
    replace_tensors(tmp_path, {"d2t": d2t})

    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_a_smaller_vocabulary_needs_a_map(tmp_path):
    write_tiny_eagle3(tmp_path, **sizes, draft_vocab_size=50, without=["d2t"])

    with pytest.raises(ValueError, match=r"draft_vocab_size is 50, vocab_size 97, but .* no d2t"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["embed_tokens.weight", "lm_head.weight"])
def test_sharing_the_targets_weights_needs_its_directory(tmp_path, name):
    """Also where draft_vocab_size is stated, which some exports do without shipping a head."""
    write_tiny_eagle3(tmp_path, **sizes, draft_vocab_size=VOCAB, without=[name])

    with pytest.raises(ValueError, match=rf"no {name} .*--target-model"):
        load(tmp_path)


def test_a_shared_embedding_must_be_as_wide_as_the_drafter(tmp_path):
    write_tiny_eagle3(
        tmp_path / "drafter",
        **(sizes | {"hidden": 16}),
        target_hidden_size=HIDDEN,
        without=["embed_tokens.weight"],
    )
    write_target(tmp_path / "target")

    with pytest.raises(ValueError, match=r"the target's embed_.* \[97, 32\], expected \[97, 16\]"):
        load(tmp_path / "drafter", model_dir=tmp_path / "target")


def test_a_tokenizer_of_another_target_is_refused(drafter_dir):
    (drafter_dir / "tokenizer.json").write_text("{}")

    with pytest.raises(ValueError, match=r"tokenizer: .*44136fa.*the target's is 0123"):
        load(drafter_dir, tokenizer_digest="0123")


def test_tap_layers_given_at_load_override_the_config(drafter_dir):
    drafter = Eagle3Drafter.load(
        "tiny", drafter_dir, target_side(), tap_layers=[1, 5, 12], kv_tokens=64
    )

    assert drafter.pairing.tap_layers == (1, 5, 12)
