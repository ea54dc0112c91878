"""Random targets of the DeepSeek-V3 family, a few hundred kilobytes, written as real ones are."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from kernels.quantized_linear import Int4Linear
from tests.tiny_llama import save_shards, write_byte_tokenizer

# As Kimi's own, and lm_head spelled with the part of the model that it belongs to.
IGNORED = (
    "language_model.lm_head",
    "re:.*self_attn.*",
    "re:.*shared_experts.*",
    r"re:.*mlp\.(gate|up|gate_up|down)_proj.*",
)
YARN = {
    "type": "yarn",
    "factor": 8.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 64,
}
_FIELDS: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "first_k_dense_replace": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.0,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 0,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 1024,
    "vocab_size": 259,
    "tie_word_embeddings": False,
    "attention_bias": False,
}


def write_tiny_deepseek(
    path: Path,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    shards: int = 1,
    tokenizer: bool = False,
    without: Iterable[str] = (),
    **config: Any,
) -> Path:
    """Write a random model into `path`; return the path.

    `config` overrides fields of config.json, and the tensors follow. `without` names tensors to
    leave out.
    """
    full = _FIELDS | config
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: _random(name, shape, generator, dtype) for name, shape in _shapes(full).items()
    }
    write_checkpoint(path, full, {n: t for n, t in tensors.items() if n not in without}, shards)
    if tokenizer:
        write_byte_tokenizer(path)
    return path


def write_checkpoint(
    path: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], shards: int = 1
) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_shards(path, tensors, shards)


def nested(
    config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return a checkpoint as Kimi-K2.5's: beside the text model there is one that sees."""
    text = dict(config) | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "kimi_k2"}
    outer = {"architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25"}
    seeing = {"vision_tower.patch_embed.proj.weight": torch.ones(4, 4)}
    named = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    return outer | {"text_config": text}, named | seeing


def quantized(
    config: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    ignored: Iterable[str] = IGNORED,
) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Return a checkpoint with int4 weights in groups of 32, as compressed-tensors keeps them."""
    names = [name for name in tensors if is_linear(name) and not _is_ignored(name, ignored)]
    packed = {name: tensor for name, tensor in tensors.items() if name not in names}
    for name in names:
        layer = Int4Linear(tensors[name])
        parts = {
            "packed": packed_as_compressed_tensors(layer.q_NK),
            "scale": layer.scale_NG.bfloat16(),
            "shape": torch.tensor(tensors[name].shape, dtype=torch.int32),
        }
        packed |= {f"{name}_{part}": tensor for part, tensor in parts.items()}
    return dict(config) | {"quantization_config": int4_config(ignored)}, packed


def int4_config(ignored: Iterable[str] = IGNORED, **weights: Any) -> dict[str, Any]:
    """Return what a config.json says about int4 weights; `weights` overrides fields of these."""
    scheme = {
        "actorder": None,
        "block_structure": None,
        "dynamic": False,
        "group_size": 32,
        "num_bits": 4,
        "observer": "minmax",
        "observer_kwargs": {},
        "strategy": "group",
        "symmetric": True,
        "type": "int",
    }
    group = {
        "input_activations": None,
        "output_activations": None,
        "targets": ["Linear"],
        "weights": scheme | weights,
    }
    return {
        "config_groups": {"group_0": group},
        "format": "pack-quantized",
        "ignore": list(ignored),
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }


def dequantized(tensors: Mapping[str, torch.Tensor], names: Iterable[str]) -> dict[str, Any]:
    """Return tensors with some weights brought to the nearest that int4 can say."""
    near = {name: Int4Linear(tensors[name]).dequantized(tensors[name].dtype) for name in names}
    return dict(tensors) | near


def packed_as_compressed_tensors(q_NK: torch.Tensor) -> torch.Tensor:
    """Pack weights in [-8, 7] by arithmetic alone: the first of eight in the lowest bits."""
    words_NX = torch.zeros(len(q_NK), -(-q_NK.shape[1] // 8), dtype=torch.int64)
    for k in range(q_NK.shape[1]):
        words_NX[:, k // 8] += (q_NK[:, k].long() + 8) * 16 ** (k % 8)
    return torch.where(words_NX >= 2**31, words_NX - 2**32, words_NX).int()


def is_linear(name: str) -> bool:
    """Whether a tensor is the weight of a linear layer. The router is none of torch's."""
    return name.endswith("_proj.weight") or name.endswith(("_mqa.weight", "lm_head.weight"))


def _is_ignored(name: str, ignored: Iterable[str]) -> bool:
    layer = f"language_model.{name.removesuffix('.weight')}"
    patterns = (entry.removeprefix("re:") for entry in ignored)
    return any(re.match(pattern, layer) for pattern in patterns)


def _random(
    name: str, shape: tuple[int, ...], generator: torch.Generator, dtype: torch.dtype
) -> torch.Tensor:
    """Return norms around 1, and matrices that keep the size of what they map."""
    noise = torch.randn(shape, generator=generator)
    if name.endswith("e_score_correction_bias"):
        return 0.1 * noise
    if name.endswith("bias"):
        return (0.3 * noise).to(dtype)
    return (1 + 0.3 * noise if len(shape) == 1 else noise * (4 / shape[-1]) ** 0.5).to(dtype)


def _shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    vocab, hidden = config["vocab_size"], config["hidden_size"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocab, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (vocab, hidden)
    # Layers behind the last one predict more than one token; no target reads them.
    for index in range(config["num_hidden_layers"] + config["num_nextn_predict_layers"]):
        dense = index < config["first_k_dense_replace"]
        layer = _attention_shapes(config) | (_dense_shapes if dense else _expert_shapes)(config)
        layer |= dict.fromkeys(("input_layernorm", "post_attention_layernorm"), (hidden,))
        for name, shape in layer.items():
            end = "" if name.endswith("bias") else ".weight"
            shapes[f"model.layers.{index}.{name}{end}"] = shape
    return shapes


def _attention_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    nope, rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    rank, query_rank = config["kv_lora_rank"], config["q_lora_rank"]
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.kv_a_proj_with_mqa": (rank + rope, hidden),
        "self_attn.kv_a_layernorm": (rank,),
        "self_attn.kv_b_proj": (heads * (nope + config["v_head_dim"]), rank),
        "self_attn.o_proj": (hidden, heads * config["v_head_dim"]),
    }
    if query_rank is None:
        shapes["self_attn.q_proj"] = (heads * (nope + rope), hidden)
    else:
        shapes["self_attn.q_a_proj"] = (query_rank, hidden)
        shapes["self_attn.q_a_layernorm"] = (query_rank,)
        shapes["self_attn.q_b_proj"] = (heads * (nope + rope), query_rank)
    if config["attention_bias"]:
        biased = ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa", "self_attn.o_proj")
        shapes |= {f"{name}.bias": shapes[name][:1] for name in biased if name in shapes}
    return shapes


def _dense_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return _gated_shapes("mlp", config["hidden_size"], config["intermediate_size"])


def _expert_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, width = config["hidden_size"], config["moe_intermediate_size"]
    num_experts, num_shared = config["n_routed_experts"], config["n_shared_experts"]
    shapes: dict[str, tuple[int, ...]] = {
        "mlp.gate": (num_experts, hidden),
        "mlp.gate.e_score_correction_bias": (num_experts,),
    }
    shapes |= _gated_shapes("mlp.shared_experts", hidden, num_shared * width)
    for expert in range(num_experts):
        shapes |= _gated_shapes(f"mlp.experts.{expert}", hidden, width)
    return shapes


def _gated_shapes(prefix: str, hidden: int, width: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.gate_proj": (width, hidden),
        f"{prefix}.up_proj": (width, hidden),
        f"{prefix}.down_proj": (hidden, width),
    }
