"""A speculators config.json means what the flat one of the same drafter means."""

import pytest

from draft_service.drafters.checkpoint_config import (
    CheckpointFormat,
    canonical_config,
    checkpoint_format,
)
from draft_service.drafters.eagle3_config import Eagle3Config

LAYERS = 32
LAYER = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 2048,
}
SPECULATORS = {
    "architectures": ["Eagle3Speculator"],
    "speculators_model_type": "eagle3",
    "transformer_layer_config": LAYER,
}
FLAT = LAYER | {"architectures": ["LlamaForCausalLMEagle3"]}


def read(layer=None, **fields) -> Eagle3Config:
    nested = {"transformer_layer_config": LAYER | (layer or {})}
    return Eagle3Config.from_json(SPECULATORS | nested | fields, LAYERS)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (FLAT, CheckpointFormat.SGLANG),
        (LAYER, CheckpointFormat.SGLANG),
        ({"architectures": ["LlamaForCausalLM"]}, CheckpointFormat.SGLANG),
        (SPECULATORS, CheckpointFormat.SPECULATORS),
        ({"architectures": ["Eagle3Speculator"]}, CheckpointFormat.SPECULATORS),
        ({"speculators_model_type": "eagle3"}, CheckpointFormat.SPECULATORS),
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, CheckpointFormat.MLA),
        ({"architectures": ["Eagle3DeepseekV3ForCausalLM"]}, CheckpointFormat.MLA),
    ],
)
def test_a_format_is_told_by_what_its_writer_states(config, expected):
    assert checkpoint_format(config) is expected


def test_a_flat_config_is_its_own_canonical_form():
    assert canonical_config(FLAT) == FLAT


def test_a_speculators_config_is_the_flat_config_of_its_layer():
    """But for what the format leaves out: its own defaults are not those of flat configs."""
    stated = {"draft_vocab_size": 1000, "norm_before_residual": False}

    assert read(**stated) == Eagle3Config.from_json(FLAT | stated, LAYERS)


def test_what_a_speculators_config_leaves_out_is_not_what_a_flat_one_leaves_out():
    """norm_before_residual True for False, draft_vocab_size 32000 for the whole vocabulary."""
    flat = Eagle3Config.from_json(FLAT, LAYERS)

    assert (read().norm_before_residual, flat.norm_before_residual) == (True, False)
    assert (read().draft_vocab_size, flat.draft_vocab_size) == (32000, 128256)
    assert read(norm_before_residual=None, draft_vocab_size=None) == read()


@pytest.mark.parametrize(
    "fields",
    [
        {"norm_before_residual": False},
        {"norm_before_fc": True},
        {"fc_norm": True},
        {"norm_output": True},
    ],
)
def test_a_switch_beside_the_layer_counts_and_one_within_it_does_not(fields):
    """The layer's config was copied from the target's."""
    (name,) = fields

    assert getattr(read(**fields), name) is fields[name]
    assert getattr(read(layer=fields), name) is not fields[name]


@pytest.mark.parametrize("ids", [[1, 15, 28], [2, 16, 29], [3, 16, 32]])
def test_tap_layers_are_taken_as_they_are(ids):
    """Also where they begin with 1, which SGLang's nested ids would be moved up by."""
    assert read(eagle_aux_hidden_state_layer_ids=ids).tap_layers == tuple(ids)


def test_tap_layers_within_the_layers_config_are_the_targets_own():
    nested = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [5, 6, 7]}}

    assert read(layer=nested).tap_layers == (2, 16, 29)
    assert read(layer={"eagle_aux_hidden_state_layer_ids": [5, 6, 7]}).tap_layers == (2, 16, 29)


def test_the_targets_width_is_read_beside_the_layer():
    assert read(target_hidden_size=5120).tapped_width == 3 * 5120
    assert read().target_hidden_size == 4096


def test_the_targets_quantization_and_tied_head_are_not_inherited():
    """The layer's config names them where the target's did; the drafter's own are beside it."""
    its_own = {"quantization_config": {"bits": 4}, "tie_word_embeddings": True, "bias": True}

    assert read(layer=its_own) == read()
    with pytest.raises(ValueError, match=r"quantization_config is \{'bits': 8\}"):
        read(quantization_config={"bits": 8})


@pytest.mark.parametrize(
    ("model_type", "normed"), [("llama", False), ("qwen3", True), (None, True)]
)
def test_a_qwen3_layer_norms_queries_and_keys(model_type, normed):
    """A layer that does not say what it is, is one: as speculators itself reads it."""
    assert read(layer={"model_type": model_type}).qk_norm is normed


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"speculators_model_type": "eagle"}, "speculators_model_type is 'eagle', only 'eagle3'"),
        ({"speculators_model_type": "peagle"}, "is 'peagle', only 'eagle3'"),
        (
            {"transformer_layer_config": None},
            "transformer_layer_config must be an object, got None",
        ),
        (
            {"transformer_layer_config": LAYER | {"model_type": "gemma3_text"}},
            "model_type is 'gemma3_text', supported: llama, qwen3",
        ),
        (
            {"transformer_layer_config": LAYER | {"num_hidden_layers": 3}},
            "num_hidden_layers is 3, only 1",
        ),
        ({"norm_before_fc": True, "fc_norm": True}, "norm_before_fc and fc_norm are both True"),
    ],
)
def test_a_speculators_config_that_cannot_be_run_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Eagle3Config.from_json(SPECULATORS | fields, LAYERS)
