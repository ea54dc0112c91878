"""Models by the architecture their config.json names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from target_service.models.llama import Llama, LlamaConfig
from target_service.weights import Weights

LLAMA_FAMILY = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)


def model_config(config: Mapping[str, Any]) -> LlamaConfig:
    """Return the model's configuration, or raise ValueError for an architecture not known."""
    architectures = config.get("architectures") or ["none"]
    if architectures[0] not in LLAMA_FAMILY:
        raise ValueError(
            f"architecture {architectures[0]!r} is not supported; known: {', '.join(LLAMA_FAMILY)}"
        )
    return LlamaConfig.from_json(config)


def build_model(config: LlamaConfig, weights: Weights, max_context_len: int) -> Llama:
    """Return the model ready to run contexts of up to `max_context_len` tokens."""
    return Llama(config, weights, max_context_len)
