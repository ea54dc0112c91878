"""Models by the architecture their config.json names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protos.config_fields import FLAG, LAYER_FIELDS, SIZE, check_fields, stated
from target_service.models.deepseek import Deepseek
from target_service.models.deepseek_config import DeepseekConfig
from target_service.models.llama import Llama, LlamaConfig
from target_service.models.target_model import TargetModel
from target_service.weights import Checkpoint

LLAMA_FAMILY = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
LLAMA_FIELDS = {"sliding_window": SIZE, "use_sliding_window": FLAG}
_REQUIRED = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "vocab_size",
)
DEEPSEEK_FAMILY = ("DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration")


def model_config(config: Mapping[str, Any]) -> LlamaConfig | DeepseekConfig:
    """Return the model's configuration, or raise ValueError for one that is not supported."""
    config = stated(config)
    check_fields(config, LAYER_FIELDS)
    architecture = (config.get("architectures") or ["none"])[0]
    if architecture in DEEPSEEK_FAMILY:
        return DeepseekConfig.from_json(config)
    if architecture not in LLAMA_FAMILY:
        known = ", ".join(LLAMA_FAMILY + DEEPSEEK_FAMILY)
        raise ValueError(f"architecture {architecture!r} is not supported; known: {known}")
    _check_supported(config)
    return LlamaConfig.from_json(config)


def _check_supported(config: Mapping[str, Any]) -> None:
    """Raise ValueError for what would be computed wrongly, not for what is only unusual."""
    check_fields(config, LLAMA_FIELDS)
    for name in _REQUIRED:
        if name not in config:
            raise ValueError(f"config.json has no {name!r}")
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    if heads % kv_heads:
        raise ValueError(
            f"num_attention_heads is {heads}, not a multiple of num_key_value_heads {kv_heads}"
        )
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ValueError(f"hidden_act {activation!r} is not supported; known: silu")
    if quantization := config.get("quantization_config"):
        method = quantization.get("quant_method")
        raise ValueError(f"quantized weights ({method!r}) are not supported; take the plain ones")


def build_model(
    config: LlamaConfig | DeepseekConfig,
    weights: Checkpoint,
    max_context_len: int,
    weight_format: str = "dense",
) -> TargetModel:
    """Return the model ready to run contexts of up to `max_context_len` tokens.

    Raises ValueError for a `weight_format` that is not one of `WEIGHT_FORMATS`, or another than
    the one that the checkpoint is quantized in.
    """
    if isinstance(config, DeepseekConfig):
        return Deepseek(config, weights, max_context_len, weight_format)
    return Llama(config, weights, max_context_len, weight_format)
