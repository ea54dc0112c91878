"""What a config.json of the DeepSeek-V3 family must say, and what is refused by name."""

import pytest

from target_service.models import DEEPSEEK_FAMILY, build_model, model_config
from target_service.models.deepseek_config import DeepseekConfig
from target_service.weights import Weights, read_config
from tests.tiny_deepseek import YARN, int4_config, nested, write_tiny_deepseek

REQUIRED = (
    "hidden_size",
    "num_hidden_layers",
    "first_k_dense_replace",
    "num_attention_heads",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "qk_nope_head_dim",
    "v_head_dim",
    "intermediate_size",
    "moe_intermediate_size",
    "n_routed_experts",
    "n_shared_experts",
    "num_experts_per_tok",
    "n_group",
    "topk_group",
    "norm_topk_prob",
    "routed_scaling_factor",
    "vocab_size",
    "max_position_embeddings",
)


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return read_config(write_tiny_deepseek(tmp_path_factory.mktemp("config")))


@pytest.mark.parametrize("architecture", DEEPSEEK_FAMILY)
def test_every_architecture_is_read(config, architecture):
    read = model_config(config | {"architectures": [architecture]})
    assert isinstance(read, DeepseekConfig)
    assert (read.head_dim, read.latent.query_rank, read.routing.choices) == (28, 24, 3)


def test_the_text_model_of_one_that_sees_is_read(config):
    outer = nested(config, {})[0] | {"vision_config": {"hidden_size": 5}, "hidden_size": 7}
    assert model_config(outer) == model_config(config)


@pytest.mark.parametrize("wrap", [lambda config: config, lambda config: nested(config, {})[0]])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported; known: sigmoid"),
        ({"topk_method": "greedy"}, "topk_method 'greedy' is not supported; known: noaux_tc"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; known: silu"),
        ({"moe_layer_freq": 2}, "moe_layer_freq 2 is not supported; known: 1"),
        ({"rope_interleave": False}, "rope_interleave False is not supported"),
        ({"mla_use_nope": True}, "mla_use_nope True is not supported"),
        ({"hidden_size": 0}, "hidden_size must be an integer of at least 1, got 0"),
        ({"first_k_dense_replace": -1}, "first_k_dense_replace must be an integer of at least 0"),
        ({"q_lora_rank": 0}, "q_lora_rank must be an integer of at least 1, got 0"),
        ({"qk_rope_head_dim": 7}, "must be even, got 20 and 7"),
        ({"n_group": 3}, "8 experts are not 3 equal groups"),
        ({"n_group": 4, "topk_group": 1}, "1 groups have too few experts"),
        ({"rope_scaling": YARN | {"mscale": None}}, r"or neither, got \['mscale_all_dim'\]"),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
            r"quantized weights \('fp8', \{'weight_block_size': \[128, 128\]\}\) are not supported",
        ),
        ({"quantization_config": int4_config(num_bits=8)}, "num_bits is 8, only 4 is supported"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(config, change, message, wrap):
    with pytest.raises(ValueError, match=message):
        model_config(wrap(config | change))


@pytest.mark.parametrize("name", REQUIRED)
def test_what_is_not_stated_is_not_guessed(config, name):
    with pytest.raises(ValueError, match=f"config.json has no '{name}'"):
        model_config(config | {name: None})


@pytest.mark.parametrize("name", ["scoring_func", "topk_method", "moe_layer_freq", "hidden_act"])
def test_a_switch_of_one_value_may_be_left_out(config, name):
    """As transformers does when it writes them."""
    stated = {key: value for key, value in config.items() if key != name}
    assert model_config(stated) == model_config(config)


def test_a_rope_that_is_not_known(tmp_path):
    path = write_tiny_deepseek(tmp_path, rope_scaling={"type": "longrope", "factor": 4.0})
    with pytest.raises(ValueError, match="rope scaling 'longrope' is not supported; known"):
        build_model(model_config(read_config(path)), Weights(path), 64)
