"""What a config.json must say to be loaded, and what is refused by name."""

import pytest

from target_service.models import LLAMA_FAMILY, build_model, model_config
from target_service.weights import Weights, read_config
from tests.tiny_llama import write_tiny_llama


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return read_config(write_tiny_llama(tmp_path_factory.mktemp("config")))


@pytest.mark.parametrize("architecture", LLAMA_FAMILY)
def test_every_known_architecture_is_built(tmp_path, architecture):
    path = write_tiny_llama(tmp_path, architecture=architecture)
    model = build_model(model_config(read_config(path)), Weights(path), 64)
    assert model.config.num_layers == 6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "'GPT2LMHeadModel' is not supported; known: Llama",
        ),
        ({"architectures": []}, "architecture 'none' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"quantization_config": {"quant_method": "fp8"}}, r"quantized weights \('fp8'\)"),
        ({"hidden_size": None}, "config.json has no 'hidden_size'"),
        ({"num_hidden_layers": None}, "config.json has no 'num_hidden_layers'"),
        ({"num_attention_heads": None}, "config.json has no 'num_attention_heads'"),
        ({"vocab_size": None}, "config.json has no 'vocab_size'"),
        ({"architectures": 5}, "architectures must be a list of names, got 5"),
        ({"rope_scaling": 5}, "rope_scaling must be an object, got 5"),
        ({"num_key_value_heads": 0}, "num_key_value_heads must be an integer of at least 1, got 0"),
        ({"sliding_window": "x"}, "sliding_window must be an integer"),
        ({"num_key_value_heads": 3}, "heads is 4, not a multiple of num_key_value_heads 3"),
        ({"head_dim": 33}, "head_dim must be even, got 33"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(config, change, message):
    with pytest.raises(ValueError, match=message):
        model_config(config | change)


def test_null_is_as_good_as_missing(config):
    optional = ("rope_theta", "rms_norm_eps", "max_position_embeddings", "head_dim")
    missing = {name: value for name, value in config.items() if name not in optional}
    assert model_config(config | dict.fromkeys(optional)) == model_config(missing)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"num_hidden_layers": 5},
            "num_hidden_layers is 5, but the checkpoint has 'model.layers.5",
        ),
        ({"num_hidden_layers": 7}, "the checkpoint has no tensor 'model.layers.6"),
        ({"vocab_size": 5}, r"embed_tokens.weight has shape \[\d+, 64\], expected \[5, 64\]"),
        ({"num_key_value_heads": 4}, r"k_proj.weight has shape \[32, 64\], expected \[64, 64\]"),
        ({"intermediate_size": 64}, r"gate_proj.weight has shape \[128, 64\], expected \[64, 64\]"),
    ],
)
def test_a_config_of_another_checkpoint_is_refused(tmp_path, change, message):
    path = write_tiny_llama(tmp_path)
    config = model_config(read_config(path) | change)
    with pytest.raises(ValueError, match=message):
        build_model(config, Weights(path), 64)


def test_a_rope_that_is_not_known(tmp_path):
    path = write_tiny_llama(tmp_path, rope_scaling={"rope_type": "longrope", "factor": 4.0})
    with pytest.raises(ValueError, match="rope scaling 'longrope' is not supported; known"):
        build_model(model_config(read_config(path)), Weights(path), 64)


@pytest.mark.parametrize(
    ("change", "longest"),
    [
        ({}, 2048),
        ({"sliding_window": 100}, 100),
        ({"sliding_window": 4096}, 2048),
        ({"sliding_window": None}, 2048),
        ({"sliding_window": 100, "use_sliding_window": False}, 2048),
    ],
)
def test_a_context_is_never_longer_than_the_window(config, change, longest):
    """Within its window, sliding attention is full attention; beyond it we would be wrong."""
    assert model_config(config | change).max_context_len == longest


def test_old_configs_leave_out_what_follows_from_other_fields(config):
    sparse = dict(config)
    for name in ("head_dim", "num_key_value_heads", "tie_word_embeddings"):
        sparse.pop(name)
    read = model_config(sparse)
    assert (read.head_dim, read.num_kv_heads, read.tied_head) == (16, 4, False)
