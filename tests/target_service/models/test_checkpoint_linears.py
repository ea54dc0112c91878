"""Tensors that do not mean what the config promises are named, not multiplied."""

import pytest
import torch
from safetensors.torch import load_file

from target_service.weights import read_config
from tests.target_service.played_session import load_model
from tests.tiny_deepseek import quantized, write_checkpoint, write_tiny_deepseek

EXPERT = "model.layers.1.mlp.experts.2.up_proj"


def load_with(path, tensors):
    """Load a tiny model some of whose tensors are others; None leaves one out."""
    write_tiny_deepseek(path)
    merged = load_file(path / "model.safetensors") | tensors
    kept = {name: tensor for name, tensor in merged.items() if tensor is not None}
    write_checkpoint(path, read_config(path), kept)
    return load_model(path)


def load_int4_with(path, tensors):
    write_tiny_deepseek(path)
    config, stored = quantized(read_config(path), load_file(path / "model.safetensors"))
    kept = {name: tensor for name, tensor in (stored | tensors).items() if tensor is not None}
    write_checkpoint(path, config, kept)
    return load_model(path)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("self_attn.q_a_proj.weight", (24, 64)),
        ("self_attn.q_a_layernorm.weight", (24,)),
        ("self_attn.q_b_proj.weight", (80, 24)),
        ("self_attn.kv_a_proj_with_mqa.weight", (28, 64)),
        ("self_attn.kv_a_layernorm.weight", (20,)),
        ("self_attn.kv_b_proj.weight", (88, 20)),
        ("self_attn.o_proj.weight", (64, 40)),
        ("input_layernorm.weight", (64,)),
        ("post_attention_layernorm.weight", (64,)),
        ("mlp.gate.weight", (8, 64)),
        ("mlp.gate.e_score_correction_bias", (8,)),
        ("mlp.shared_experts.gate_proj.weight", (32, 64)),
        ("mlp.experts.7.down_proj.weight", (64, 32)),
    ],
)
def test_a_tensor_that_is_missing_or_of_another_shape_is_named(tmp_path, name, shape):
    name, wrong = f"model.layers.2.{name}", [shape[0] + 2, *shape[1:]]
    with pytest.raises(ValueError, match=f"no tensor '{name}'"):
        load_with(tmp_path, {name: None})
    with pytest.raises(
        ValueError, match=rf"{name} has shape \[{wrong[0]}.*, expected \[{shape[0]}"
    ):
        load_with(tmp_path, {name: torch.ones(wrong)})


@pytest.mark.parametrize(
    ("part", "tensor", "message"),
    [
        ("packed", None, f"no tensor '{EXPERT}.weight_packed'"),
        ("scale", None, f"no tensor '{EXPERT}.weight_scale'"),
        ("shape", None, f"no tensor '{EXPERT}.weight_shape'"),
        ("shape", torch.tensor([32, 72]), r"weight_shape is \[32, 72\], expected \[32, 64\]"),
        ("packed", torch.ones(32, 9, dtype=torch.int32), f"{EXPERT}: words"),
        ("packed", torch.ones(32, 8, dtype=torch.int8), rf"{EXPERT}: words \(torch.int8\)"),
        ("scale", torch.ones(32, 1), f"{EXPERT}: words"),
    ],
)
def test_a_part_of_an_int4_weight_that_is_wrong_is_named(tmp_path, part, tensor, message):
    with pytest.raises(ValueError, match=message):
        load_int4_with(tmp_path, {f"{EXPERT}.weight_{part}": tensor})


def test_a_plain_weight_where_a_packed_one_is_promised_is_refused(tmp_path):
    """A checkpoint whose list of ignored layers is another's would talk nonsense, or worse."""
    parts = {f"{EXPERT}.weight_{part}": None for part in ("packed", "scale", "shape")}
    with pytest.raises(ValueError, match=f"no tensor '{EXPERT}.weight_shape'"):
        load_int4_with(tmp_path, parts | {f"{EXPERT}.weight": torch.ones(32, 64)})
