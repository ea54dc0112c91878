"""Random drafters of a few kilobytes, written as the checkpoints they stand for."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file


def write_tiny_eagle3(
    path: Path,
    *,
    target_dir: Path | None = None,
    hidden: int | None = None,
    vocab: int | None = None,
    target_layers: int | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    without: Iterable[str] = (),
    **config: Any,
) -> Path:
    """Write a random EAGLE-3 drafter with a Llama layer into `path`; return the path.

    Sizes not given are those of the target's config.json in `target_dir`; the tap layers are those
    a target taps by default. `config` overrides fields of the drafter's config.json, and the
    tensors follow: a draft_vocab_size below the vocabulary gets a `d2t`. `without` names tensors to
    leave out.
    """
    target = json.loads((target_dir / "config.json").read_text()) if target_dir else {}
    hidden = hidden or target["hidden_size"]
    layers = target_layers or target["num_hidden_layers"]
    full = _default_config(hidden, vocab or target["vocab_size"], layers)
    full |= {"target_hidden_size": target.get("hidden_size", hidden)} | config
    tensors = _tensors(full, torch.Generator().manual_seed(seed))
    kept = {name: tensor for name, tensor in tensors.items() if name not in set(without)}
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(full))
    save_file({name: _as(tensor, dtype) for name, tensor in kept.items()}, path / FILE)
    return path


FILE = "model.safetensors"
# With these fields `write_tiny_eagle3` writes a layer with latent attention. All sizes differ.
LATENT: dict[str, Any] = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "model_type": "kimi_k2",
    "q_lora_rank": 20,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 8,
    "v_head_dim": 6,
}
# What vLLM's speculators says beside the config of the layer.
_OUTER_FIELDS = (
    "draft_vocab_size",
    "eagle_aux_hidden_state_layer_ids",
    "fc_norm",
    "norm_before_fc",
    "norm_before_residual",
    "norm_output",
    "target_hidden_size",
)


def rewrite_as_speculators(path: Path, layer: dict[str, Any] | None = None, **fields: Any) -> Path:
    """Rewrite a tiny drafter in the format of vLLM's speculators; return its path.

    `fields` override those beside the layer's config, `layer` those of the layer; one that is None
    is left out.
    """
    flat = json.loads((path / "config.json").read_text())
    nested = {name: value for name, value in flat.items() if name not in _OUTER_FIELDS}
    outer = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": flat.get("draft_vocab_size") or flat["vocab_size"],
        "norm_before_residual": False,
    }
    outer |= {name: flat[name] for name in _OUTER_FIELDS if flat.get(name) is not None} | fields
    config = _stated(outer) | {"transformer_layer_config": _stated(nested | (layer or {}))}
    (path / "config.json").write_text(json.dumps(config))
    rename_tensors(path, lambda name: name.replace("midlayer.", "layers.0."))
    return path


def _stated(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if value is not None}


def rename_tensors(path: Path, rename: Callable[[str], str]) -> None:
    """Give the tensors of a tiny drafter other names."""
    tensors = load_file(path / FILE)
    save_file({rename(name): tensor for name, tensor in tensors.items()}, path / FILE)


def replace_tensors(path: Path, tensors: dict[str, torch.Tensor | None]) -> None:
    """Replace tensors of a tiny drafter, add some, or drop those given as None."""
    merged = load_file(path / FILE) | tensors
    save_file({name: one for name, one in merged.items() if one is not None}, path / FILE)


def reconfigure(path: Path, **fields: Any) -> None:
    """Replace fields of a tiny drafter's config.json."""
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | fields))


def _default_config(hidden: int, vocab: int, layers: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": vocab,
        "num_hidden_layers": 1,
        "max_position_embeddings": 64,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5,
        "eagle_aux_hidden_state_layer_ids": sorted(
            {min(2, layers - 1), layers // 2, max(layers - 3, 0)}
        ),
    }


def _as(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _tensors(config: dict[str, Any], generator: torch.Generator) -> dict[str, torch.Tensor]:
    found = {
        name: _random(shape, generator)
        for shapes in (_shapes(config), _optional_shapes(config))
        for name, shape in shapes.items()
    }
    vocab, draft_vocab = config["vocab_size"], config.get("draft_vocab_size")
    if draft_vocab and draft_vocab < vocab:
        ids = torch.randperm(vocab, generator=generator)[:draft_vocab].sort().values
        found["d2t"] = ids - torch.arange(draft_vocab)
        found["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids, True)
    return found


def _random(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Return norms around 1, and matrices that neither swell nor shrink what passes through."""
    noise = torch.randn(shape, generator=generator)
    return 1 + 0.3 * noise if len(shape) == 1 else noise * (2 / shape[-1]) ** 0.5


def _shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, inner, vocab = (
        config[name] for name in ("hidden_size", "intermediate_size", "vocab_size")
    )
    taps = _num_taps(config)
    attention = _latent_shapes if "kv_lora_rank" in config else _llama_shapes
    return attention(config) | {
        "embed_tokens.weight": (vocab, hidden),
        "fc.weight": (hidden, taps * config["target_hidden_size"]),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        "midlayer.mlp.gate_proj.weight": (inner, hidden),
        "midlayer.mlp.up_proj.weight": (inner, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, inner),
        "norm.weight": (hidden,),
        "lm_head.weight": (config.get("draft_vocab_size") or vocab, hidden),
    }


def _llama_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden = config["hidden_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    return {
        "midlayer.self_attn.q_proj.weight": (queries, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (keys, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (keys, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, queries),
    }


def _latent_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    query_rank, rank = config["q_lora_rank"], config["kv_lora_rank"]
    nope, rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
    return {
        "midlayer.self_attn.q_a_proj.weight": (query_rank, 2 * hidden),
        "midlayer.self_attn.q_a_layernorm.weight": (query_rank,),
        "midlayer.self_attn.q_b_proj.weight": (heads * (nope + rope), query_rank),
        "midlayer.self_attn.kv_a_proj_with_mqa.weight": (rank + rope, 2 * hidden),
        "midlayer.self_attn.kv_a_layernorm.weight": (rank,),
        "midlayer.self_attn.kv_b_proj.weight": (heads * (nope + config["v_head_dim"]), rank),
        "midlayer.self_attn.o_proj.weight": (hidden, heads * config["v_head_dim"]),
    }


def _optional_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    width, taps = config["target_hidden_size"], _num_taps(config)
    shapes: dict[str, tuple[int, ...]] = {}
    if config.get("fc_norm"):
        shapes |= {f"fc_norm.{tap}.weight": (width,) for tap in range(taps)}
    if config.get("norm_before_fc"):
        shapes["input_norm.weight"] = (taps * width,)
    if config.get("qk_norm"):
        names = ("q_norm", "k_norm")
        shapes |= {f"midlayer.self_attn.{name}.weight": (config["head_dim"],) for name in names}
    if config.get("bias"):
        shapes["fc.bias"] = (config["hidden_size"],)
    if config.get("attention_bias"):
        shapes |= _biases(config, ".self_attn.")
    if config.get("mlp_bias"):
        shapes |= _biases(config, ".mlp.")
    return shapes


def _biases(config: dict[str, Any], part: str) -> dict[str, tuple[int, ...]]:
    """Return the biases of all linear layers of a part of the layer."""
    return {
        name.replace("weight", "bias"): shape[:1]
        for name, shape in _shapes(config).items()
        if part in name
    }


def _num_taps(config: dict[str, Any]) -> int:
    key = "eagle_aux_hidden_state_layer_ids"
    return len(config.get(key) or config.get("eagle_config", {}).get(key) or (2, 3, 4))
