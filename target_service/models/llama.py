"""The Llama family on one device: Llama, Mistral, Qwen2, Qwen3.

Grouped-query attention, tied or own head, biases (Qwen2), q/k norms (Qwen3). What an architecture
has is read from its checkpoint: a bias that is there is added. Taps are the residual stream at the
input of a layer, un-normed.

Legend: R rows, H hidden, A query heads, C key-value heads, D head size, T taps, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from kernels.attention import RowLayout, position_blocked_attention
from kernels.elementwise import rms_norm, rotate, silu_mul
from kernels.linear import Linear
from kernels.rotary import Rope
from target_service.kv_cache import KvCache, KvShape
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


class Llama:
    """The model. Stateless: tokens, a layout and a cache in, hidden states and taps out."""

    def __init__(self, config: LlamaConfig, weights: Weights, max_context_len: int) -> None:
        self.config = config
        self._embedding_VH = weights["model.embed_tokens.weight"]
        self._layers = [_Layer(config, weights, i) for i in range(config.num_layers)]
        self._norm_H = weights["model.norm.weight"]
        head_VH = self._embedding_VH if config.tied_head else weights["lm_head.weight"]
        self._head = Linear(head_VH)
        tables = config.rope.tables(max_context_len, self.dtype)
        self._cos_PD, self._sin_PD = (table.to(self.device) for table in tables)

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding_VH.dtype

    @property
    def device(self) -> torch.device:
        return self._embedding_VH.device

    @property
    def kv_shape(self) -> KvShape:
        """What a slot of this model's cache holds."""
        config = self.config
        return KvShape(
            config.num_layers, config.num_kv_heads, config.head_dim, self.dtype, self.device
        )

    def forward(
        self, tokens_R: torch.Tensor, layout: RowLayout, cache: KvCache, tap_layers: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return last hidden states [R, H] and taps [R, T * H] of rows laid out in `cache`."""
        angles = self._cos_PD[layout.positions_R], self._sin_PD[layout.positions_R]
        h_RH = F.embedding(tokens_R, self._embedding_VH)
        inputs: dict[int, torch.Tensor] = {}
        for index, layer in enumerate(self._layers):
            inputs[index] = h_RH
            h_RH = layer(h_RH, angles, layout, cache)
        inputs[len(self._layers)] = h_RH
        taps = [inputs[layer] for layer in tap_layers]
        return h_RH, torch.cat(taps, dim=-1) if taps else h_RH[:, :0]

    def logits(self, h_RH: torch.Tensor) -> torch.Tensor:
        """Return float32 logits of hidden states, [R, V]."""
        return self._head(rms_norm(h_RH, self._norm_H, self.config.rms_norm_eps)).float()


Angles = tuple[torch.Tensor, torch.Tensor]


class _Layer:
    def __init__(self, config: LlamaConfig, weights: Weights, index: int) -> None:
        prefix = f"model.layers.{index}"
        self._eps = config.rms_norm_eps
        self._attention = _Attention(config, weights, index)
        self._mlp = _Mlp(weights, f"{prefix}.mlp")
        self._input_norm_H = weights[f"{prefix}.input_layernorm.weight"]
        self._post_norm_H = weights[f"{prefix}.post_attention_layernorm.weight"]

    def __call__(
        self, h_RH: torch.Tensor, angles: Angles, layout: RowLayout, cache: KvCache
    ) -> torch.Tensor:
        normed_RH = rms_norm(h_RH, self._input_norm_H, self._eps)
        h_RH = h_RH + self._attention(normed_RH, angles, layout, cache)
        return h_RH + self._mlp(rms_norm(h_RH, self._post_norm_H, self._eps))


class _Attention:
    def __init__(self, config: LlamaConfig, weights: Weights, index: int) -> None:
        prefix = f"model.layers.{index}.self_attn"
        self._index = index
        self._head_dim = config.head_dim
        self._eps = config.rms_norm_eps
        self._q, self._k, self._v, self._o = (
            _linear(weights, f"{prefix}.{name}_proj") for name in "qkvo"
        )
        self._q_norm_D = weights.get(f"{prefix}.q_norm.weight")
        self._k_norm_D = weights.get(f"{prefix}.k_norm.weight")

    def __call__(
        self, x_RH: torch.Tensor, angles: Angles, layout: RowLayout, cache: KvCache
    ) -> torch.Tensor:
        q_RAD = rotate(self._heads(self._q(x_RH), self._q_norm_D), *angles)
        k_RCD = rotate(self._heads(self._k(x_RH), self._k_norm_D), *angles)
        cache.write(self._index, layout.prefix_len, k_RCD, self._heads(self._v(x_RH), None))
        keys_CSD, values_CSD = cache.keys_LCSD[self._index], cache.values_LCSD[self._index]
        scale = self._head_dim**-0.5
        out_RAD = position_blocked_attention(q_RAD, keys_CSD, values_CSD, layout, scale)
        return self._o(out_RAD.flatten(1))

    def _heads(self, x_RX: torch.Tensor, norm_D: torch.Tensor | None) -> torch.Tensor:
        x_RAD = x_RX.view(x_RX.shape[0], -1, self._head_dim)
        return x_RAD if norm_D is None else rms_norm(x_RAD, norm_D, self._eps)


class _Mlp:
    def __init__(self, weights: Weights, prefix: str) -> None:
        self._gate = _linear(weights, f"{prefix}.gate_proj")
        self._up = _linear(weights, f"{prefix}.up_proj")
        self._down = _linear(weights, f"{prefix}.down_proj")

    def __call__(self, x_RH: torch.Tensor) -> torch.Tensor:
        return self._down(silu_mul(self._gate(x_RH), self._up(x_RH)))


def _linear(weights: Weights, name: str) -> Linear:
    return Linear(weights[f"{name}.weight"], weights.get(f"{name}.bias"))
