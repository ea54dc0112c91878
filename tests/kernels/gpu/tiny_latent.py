"""Tiny models of the DeepSeek-V3 family whose sizes are such as kernels for GPUs take."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from target_service.weights import read_config
from tests.tiny_deepseek import YARN, nested, quantized, write_checkpoint, write_tiny_deepseek

_SIZES = {
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 80,
    "kv_lora_rank": 64,
    "qk_rope_head_dim": 16,
    "vocab_size": 150,
}
_GROUPS = {"n_routed_experts": 8, "n_group": 4, "topk_group": 2}
KINDS: Mapping[str, Mapping[str, Any]] = {
    # A dense layer, then experts of 4 bits.
    "kimi": _SIZES | {"rope_scaling": YARN, "n_routed_experts": 6},
    # The same, in parts for two devices that cut no group of weights.
    "kimi in halves": _SIZES
    | {"num_attention_heads": 4, "moe_intermediate_size": 64, "rope_scaling": YARN},
    # Queries come from hidden directly; every layer has experts, in bfloat16.
    "all switches": _SIZES
    | _GROUPS
    | {
        "q_lora_rank": None,
        "attention_bias": True,
        "first_k_dense_replace": 0,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "tie_word_embeddings": True,
    },
}


def write_tiny_latent(path: Path, kind: str) -> Path:
    """Write a model into `path`; return the path of its checkpoint."""
    write_tiny_deepseek(path / "plain", dtype=torch.bfloat16, **KINDS[kind])
    if not kind.startswith("kimi"):
        return path / "plain"
    stored = read_config(path / "plain"), load_file(path / "plain" / "model.safetensors")
    write_checkpoint(path / "kimi", *nested(*quantized(*stored)))
    return path / "kimi"
