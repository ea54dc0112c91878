"""The Llama family on one device: Llama, Mistral, Qwen2, Qwen3.

Grouped-query attention, tied or own head, biases (Qwen2), q/k norms (Qwen3). What an architecture
has is read from its checkpoint: a bias that is there is added. Taps are the residual stream at the
input of a layer, un-normed.

Legend: H hidden, D head size, P positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels.decoder import DecoderLayer, DecoderStack
from kernels.linear import Linear
from kernels.normed_linear import NormedLinear
from kernels.quantized_linear import new_linear
from kernels.rotary import Rope
from target_service.kv_cache import KvShape
from target_service.models.target_model import TargetModel
from target_service.weights import Weights


@dataclass(frozen=True)
class LlamaConfig:
    """What config.json says about a model of this family."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    tied_head: bool
    max_context_len: int
    rope: Rope

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> LlamaConfig:
        heads = config["num_attention_heads"]
        head_dim = config.get("head_dim") or config["hidden_size"] // heads
        return cls(
            hidden_size=config["hidden_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=head_dim,
            vocab_size=config["vocab_size"],
            rms_norm_eps=config.get("rms_norm_eps", 1e-6),
            tied_head=config.get("tie_word_embeddings", False),
            max_context_len=_max_context_len(config),
            rope=Rope.from_config(config, head_dim),
        )


def _max_context_len(config: Mapping[str, Any]) -> int:
    """Return the longest context with full attention: within a sliding window it is the same."""
    longest: int = config.get("max_position_embeddings", 2048)
    window = config.get("sliding_window")
    if window and config.get("use_sliding_window", True):
        return min(longest, int(window))
    return longest


class Llama(TargetModel):
    """The model."""

    config: LlamaConfig

    def __init__(
        self,
        config: LlamaConfig,
        weights: Weights,
        max_context_len: int,
        weight_format: str = "dense",
    ) -> None:
        self.config = config
        self.weight_format = weight_format
        self.embedding_VH = weights["model.embed_tokens.weight"]
        cos_PD, sin_PD = config.rope.tables(max_context_len, self.dtype)
        self.stack = DecoderStack(
            [_layer(config, weights, i, weight_format) for i in range(config.num_layers)],
            (cos_PD.to(self.device), sin_PD.to(self.device)),
        )
        head_VH = self.embedding_VH if config.tied_head else weights["lm_head.weight"]
        head = new_linear(weight_format, head_VH)
        self.head = NormedLinear(head, weights["model.norm.weight"], config.rms_norm_eps)

    @property
    def kv_shape(self) -> KvShape:
        """What a slot of this model's cache holds."""
        config = self.config
        return KvShape(
            config.num_layers, config.num_kv_heads, config.head_dim, self.dtype, self.device
        )


def _layer(config: LlamaConfig, weights: Weights, index: int, weight_format: str) -> DecoderLayer:
    prefix = f"model.layers.{index}"

    def linear(name: str) -> Linear:
        weight = weights[f"{prefix}.{name}.weight"]
        return new_linear(weight_format, weight, weights.get(f"{prefix}.{name}.bias"))

    return DecoderLayer(
        q=linear("self_attn.q_proj"),
        k=linear("self_attn.k_proj"),
        v=linear("self_attn.v_proj"),
        o=linear("self_attn.o_proj"),
        gate=linear("mlp.gate_proj"),
        up=linear("mlp.up_proj"),
        down=linear("mlp.down_proj"),
        input_norm_H=weights[f"{prefix}.input_layernorm.weight"],
        post_norm_H=weights[f"{prefix}.post_attention_layernorm.weight"],
        q_norm_D=weights.get(f"{prefix}.self_attn.q_norm.weight"),
        k_norm_D=weights.get(f"{prefix}.self_attn.k_norm.weight"),
        head_dim=config.head_dim,
        eps=config.rms_norm_eps,
    )
