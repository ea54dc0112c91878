"""Every switch of a config.json is read, or refused by name."""

import math

import pytest

from draft_service.drafters.eagle3_config import Eagle3Config

LAYERS = 61
KIMI = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "hidden_size": 7168,
    "intermediate_size": 12288,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "head_dim": 128,
    "vocab_size": 163840,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-6,
    "rope_theta": 50000.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 64.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    },
}


def read(**fields) -> Eagle3Config:
    return Eagle3Config.from_json(KIMI | fields, LAYERS)


def test_sizes_are_read_and_what_is_left_out_has_its_default():
    config = read()

    assert (config.hidden_size, config.target_hidden_size) == (7168, 7168)
    assert (config.vocab_size, config.draft_vocab_size) == (163840, 163840)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (64, 64, 128)
    assert (config.intermediate_size, config.rms_norm_eps) == (12288, 1e-6)
    assert config.tap_layers == (2, 30, 58)
    assert config.tapped_width == 21504
    assert config.first_layer_norm
    assert config.last_norm


def test_a_field_that_is_null_is_a_field_left_out():
    """Exporters write null where they have nothing to say."""
    nothing = dict.fromkeys(
        [
            "draft_vocab_size",
            "target_hidden_size",
            "eagle_config",
            "head_dim",
            "hidden_act",
            "num_aux_hidden_states",
            "num_key_value_heads",
            "quantization_config",
        ]
    )

    assert read(**nothing).head_dim == 7168 // 64
    assert read(**(nothing | {"head_dim": 128})) == read()


@pytest.mark.parametrize(
    ("fields", "switch"),
    [
        ({"bias": True}, "bias"),
        ({"tie_word_embeddings": True}, "tied_head"),
        ({"fc_norm": True}, "fc_norm"),
        ({"use_aux_norm": True}, "fc_norm"),
        ({"norm_before_fc": True}, "norm_before_fc"),
        ({"eagle_config": {"norm_before_fc": True}}, "norm_before_fc"),
        ({"norm_before_residual": True}, "norm_before_residual"),
        ({"norm_output": True}, "norm_output"),
    ],
)
def test_a_switch_is_off_until_the_config_turns_it_on(fields, switch):
    assert getattr(read(), switch) is False
    assert getattr(read(**fields), switch) is True


@pytest.mark.parametrize(
    ("name", "switch"),
    [
        ("use_input_layernorm_in_first_layer", "first_layer_norm"),
        ("use_last_layernorm", "last_norm"),
    ],
)
def test_a_norm_is_there_until_the_config_takes_it_away(name, switch):
    assert getattr(read(eagle_config={name: None}), switch) is True
    assert getattr(read(eagle_config={name: False}), switch) is False


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2, only 1"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', only 'silu'"),
        ({"quantization_config": {"bits": 8}}, r"quantization_config is \{'bits': 8\}"),
        (
            {"eagle_config": {"use_aux_hidden_state": False}},
            r"eagle_config\.use_aux_hidden_state is False, only True",
        ),
        (
            {"eagle_config": {"use_mtp_layernorm": True}},
            r"eagle_config\.use_mtp_layernorm is True, only False",
        ),
        (
            {"eagle_config": {"parallel_draft_step": 4}},
            r"eagle_config\.parallel_draft_step is 4, only 1",
        ),
        ({"architectures": ["MedusaModel"]}, "architecture 'MedusaModel' is no EAGLE-3 drafter"),
        ({"use_sliding_window": True}, "use_sliding_window is True, only False"),
        ({"layer_types": ["sliding_attention"]}, "layer_types begins with 'sliding_attention'"),
        ({"draft_vocab_size": 163841}, "draft_vocab_size is 163841, more than vocab_size 163840"),
        ({"hidden_size": None}, "hidden_size must be a positive integer, got None"),
        ({"vocab_size": "many"}, "vocab_size must be a positive integer, got 'many'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "'dynamic' is not supported"),
        ({"rope_scaling": {"type": "yarn"}}, "'yarn' needs 'factor'"),
        ({"num_aux_hidden_states": 1}, r"num_aux_hidden_states is 1, .* \(2, 30, 58\)"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name_and_value(fields, message):
    with pytest.raises(ValueError, match=message):
        read(**fields)


def test_num_aux_hidden_states_may_be_any_number_that_matches_the_layers():
    config = read(num_aux_hidden_states=2, eagle_aux_hidden_state_layer_ids=[4, 8])

    assert config.tap_layers == (4, 8)


def test_yarn_scales_by_the_ratio_of_its_mscales():
    """1 where they are equal: what the trainers do. 0.1 ln 64 + 1 would be off by 1.4."""
    assert read().rope.frequencies()[1] == 1.0
    uneven = KIMI["rope_scaling"] | {"mscale": 2.0}
    assert read(rope_scaling=uneven).rope.frequencies()[1] == pytest.approx(
        (0.2 * math.log(64) + 1) / (0.1 * math.log(64) + 1)
    )


def test_llama_4_names_the_width_of_its_dense_layer_apart():
    assert read(intermediate_size_mlp=16384).intermediate_size == 16384
