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

import torch

from kernels.decoder import DecoderLayer, DecoderStack
from kernels.linear import Linear
from kernels.rotary import Rope
from target_service.kv_cache import KvShape
from target_service.models.checkpoint_linears import CheckpointLinears, read_tensor
from target_service.models.target_model import TargetModel
from target_service.weights import Checkpoint


@dataclass(frozen=True)
class LlamaConfig:
    """What config.json says about a model of this family."""

    hidden_size: int
    intermediate_size: int
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
            intermediate_size=config["intermediate_size"],
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
        weights: Checkpoint,
        max_context_len: int,
        weight_format: str = "dense",
    ) -> None:
        self.config = config
        self.weight_format = weight_format
        _check_depth(config, weights)
        shape = (config.vocab_size, config.hidden_size)
        self.embedding_VH = read_tensor(weights, "model.embed_tokens.weight", *shape)
        linears = CheckpointLinears(weights, self.embedding_VH, None, weight_format)
        cos_PD, sin_PD = config.rope.tables(max_context_len, self.dtype)
        self.stack = DecoderStack(
            [_layer(config, linears, i) for i in range(config.num_layers)],
            (cos_PD.to(self.device), sin_PD.to(self.device)),
        )
        self.head = linears.head(config, self.embedding_VH)

    @property
    def kv_shape(self) -> KvShape:
        """What a slot of this model's cache holds."""
        config = self.config
        return KvShape(
            config.num_layers, config.num_kv_heads, config.head_dim, self.dtype, self.device
        )


def _check_depth(config: LlamaConfig, weights: Checkpoint) -> None:
    """Raise ValueError if the checkpoint has a layer more than its config says."""
    if any(name.startswith(f"model.layers.{config.num_layers}.") for name in weights):
        raise ValueError(
            f"num_hidden_layers is {config.num_layers}, but the checkpoint has "
            f"'model.layers.{config.num_layers}' too"
        )


def _layer(config: LlamaConfig, linears: CheckpointLinears, index: int) -> DecoderLayer:
    """Return a layer. Raises ValueError for tensors that are missing or of another shape."""
    prefix = f"model.layers.{index}"
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    queries, keys = config.num_heads * dim, config.num_kv_heads * dim

    def linear(name: str, outputs: int, inputs: int) -> Linear:
        return linears(f"{prefix}.{name}", outputs, inputs)

    def norm(name: str, width: int) -> torch.Tensor:
        return linears.tensor(f"{prefix}.{name}.weight", width)

    def optional_norm(name: str) -> torch.Tensor | None:
        return norm(name, dim) if f"{prefix}.{name}.weight" in linears.weights else None

    return DecoderLayer(
        q=linear("self_attn.q_proj", queries, hidden),
        k=linear("self_attn.k_proj", keys, hidden),
        v=linear("self_attn.v_proj", keys, hidden),
        o=linear("self_attn.o_proj", hidden, queries),
        gate=linear("mlp.gate_proj", inner, hidden),
        up=linear("mlp.up_proj", inner, hidden),
        down=linear("mlp.down_proj", hidden, inner),
        input_norm_H=norm("input_layernorm", hidden),
        post_norm_H=norm("post_attention_layernorm", hidden),
        q_norm_D=optional_norm("self_attn.q_norm"),
        k_norm_D=optional_norm("self_attn.k_norm"),
        head_dim=dim,
        eps=config.rms_norm_eps,
    )
