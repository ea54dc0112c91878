"""Which layers of a checkpoint are int4, and which schemes are refused."""

import pytest

from target_service.models.quantization import read_quantization
from tests.tiny_deepseek import IGNORED, int4_config


def read(**change: object):
    return read_quantization({"quantization_config": int4_config() | change})


def test_a_config_that_says_nothing_is_of_plain_weights():
    assert read_quantization({}) is None
    assert read_quantization({"quantization_config": None}) is None


@pytest.mark.parametrize(
    ("layer", "covered"),
    [
        ("model.layers.1.mlp.experts.383.gate_proj", True),
        ("model.layers.60.mlp.experts.0.down_proj", True),
        ("model.layers.1.mlp.shared_experts.gate_proj", False),
        ("model.layers.0.mlp.down_proj", False),
        ("model.layers.5.self_attn.kv_a_proj_with_mqa", False),
        ("lm_head", False),
    ],
)
def test_kimis_own_list_leaves_the_experts(layer, covered):
    assert read().covers(layer) is covered
    # The name of the text model may be part of the list's, or not.
    assert read(ignore=["lm_head", *IGNORED[1:]]).covers(layer) is covered


@pytest.mark.parametrize(
    ("entry", "layer", "covered"),
    [
        ("model.layers.1.mlp.up_proj", "model.layers.1.mlp.up_proj", False),
        ("model.layers.1.mlp.up_proj", "model.layers.1xmlp.up_proj", True),
        ("model.layers.1", "model.layers.1.mlp.up_proj", True),
        ("re:up_proj", "model.layers.1.mlp.up_proj", True),
        ("re:model", "model.layers.1.mlp.up_proj", False),
        ("re:language_model.model", "model.layers.1.mlp.up_proj", False),
    ],
)
def test_a_name_is_whole_and_a_pattern_is_one_of_the_beginning(entry, layer, covered):
    assert read(ignore=[entry]).covers(layer) is covered


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_bits": 8}, "num_bits is 8, only 4"),
        ({"num_bits": None}, "num_bits is 8, only 4"),
        ({"type": "float"}, "type is 'float', only 'int'"),
        ({"symmetric": False}, "symmetric is False, only True"),
        ({"strategy": "channel"}, "strategy is 'channel', only 'group'"),
        ({"strategy": None}, "strategy is None, only 'group'"),
        ({"group_size": 128}, "group_size is 128, only 32"),
        ({"group_size": None}, "group_size is None, only 32"),
        ({"actorder": "group"}, "actorder is 'group', only None"),
        ({"dynamic": True}, "dynamic is True, only False"),
    ],
)
def test_another_way_of_keeping_weights_is_refused(change, message):
    with pytest.raises(ValueError, match=f"quantization: {message} is supported"):
        read_quantization({"quantization_config": int4_config(**change)})


GROUP = int4_config()["config_groups"]["group_0"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quant_method": "awq"}, r"quantized weights \('awq', .*'format'"),
        ({"quant_method": None}, r"quantized weights \(None"),
        ({"format": "nvfp4-pack-quantized"}, "format is 'nvfp4-pack-quantized', only"),
        ({"config_groups": {}}, r"one group of layers, got \[\]"),
        ({"config_groups": {"a": GROUP, "b": GROUP}}, r"got \['a', 'b'\]"),
        ({"config_groups": {"a": GROUP | {"targets": ["Embedding"]}}}, "targets is"),
        (
            {"config_groups": {"a": GROUP | {"input_activations": {"num_bits": 8}}}},
            r"input_activations is \{'num_bits': 8\}, only None",
        ),
    ],
)
def test_another_scheme_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        read(**change)
