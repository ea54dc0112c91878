"""Decoder layers' weights as kernels for GPUs read them: dense, in bfloat16.

Products that read the same rows are one: q, k and v, and gate and up.

Layers may be slices of wider ones, whose other slices other devices have: what they add to the
residual stream is then a part of a sum.

Legend: N outputs, K inputs, H hidden, D head size, P positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from kernels.decoder import Angles, DecoderLayer
from kernels.gpu.paged_attention import check_head_dim
from kernels.linear import DenseLinear, Linear

Gather = Callable[[torch.Tensor], torch.Tensor]
"""From what this device has of rows, [R, H], what all devices have in one order, [P, R, H].

Bits may not depend on the number of rows; what is launched can be captured.
"""


class Weight(NamedTuple):
    """A linear layer, or several that read the same rows, one after the other."""

    weight_NK: torch.Tensor
    bias_N: torch.Tensor | None

    @classmethod
    def of(cls, *layers: Linear) -> Weight:
        """Take dense layers. Raises ValueError for other formats and dtypes."""
        dense = [_dense(layer) for layer in layers]
        return cls.joined(*(cls(layer.weight_NK, layer.bias_N) for layer in dense))

    @classmethod
    def joined(cls, *weights: Weight) -> Weight:
        """Return several, one after the other. Where only some have biases, others have zeros."""
        weight_NK = torch.cat([weight.weight_NK for weight in weights])
        if all(weight.bias_N is None for weight in weights):
            return cls(weight_NK, None)
        biases = [
            weight.weight_NK.new_zeros(len(weight.weight_NK))
            if weight.bias_N is None
            else weight.bias_N
            for weight in weights
        ]
        return cls(weight_NK, torch.cat(biases))

    def to(self, device: torch.device) -> Weight:
        """Return it on a device."""
        bias_N = None if self.bias_N is None else self.bias_N.to(device)
        return Weight(self.weight_NK.to(device), bias_N)


def _dense(layer: Linear) -> DenseLinear:
    if not isinstance(layer, DenseLinear):
        raise ValueError(f"kernels for GPUs take dense weights, not {type(layer).__name__}")
    if layer.weight_NK.dtype != torch.bfloat16:
        raise ValueError(f"kernels for GPUs take bfloat16 weights, not {layer.weight_NK.dtype}")
    return layer


class LayerWeights(NamedTuple):
    """A layer's weights; a norm that it has not is None."""

    qkv: Weight
    o: Weight
    gate_up: Weight
    down: Weight
    input_norm_H: torch.Tensor | None
    post_norm_H: torch.Tensor
    q_norm_D: torch.Tensor | None
    k_norm_D: torch.Tensor | None

    @classmethod
    def of(cls, layer: DecoderLayer) -> LayerWeights:
        """Take a layer of kernels/decoder.py. Raises ValueError if it is not dense bfloat16."""
        return cls(
            Weight.of(layer.q, layer.k, layer.v),
            Weight.of(layer.o),
            Weight.of(layer.gate, layer.up),
            Weight.of(layer.down),
            layer.input_norm_H,
            layer.post_norm_H,
            layer.q_norm_D,
            layer.k_norm_D,
        )

    def to(self, device: torch.device) -> LayerWeights:
        """Return them on a device."""
        return LayerWeights._make(part if part is None else part.to(device) for part in self)


@dataclass(frozen=True)
class Stack:
    """Layers of one shape, and cos and sin of every position, [P, D] each."""

    layers: tuple[LayerWeights, ...]
    angles: Angles
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    scale: float
    gather: Gather | None = None
    """None if the layers are whole."""

    @classmethod
    def of(
        cls, layers: Sequence[DecoderLayer], angles: Angles, device: torch.device | None = None
    ) -> Stack:
        """Take layers of kernels/decoder.py, to `device` one after the other, or where they are.

        Raises ValueError if they are not dense bfloat16, or for heads that attention cannot have.
        """
        first = layers[0]
        check_head_dim(first.head_dim)
        device = device or first.post_norm_H.device
        weights = tuple(LayerWeights.of(layer).to(device) for layer in layers)
        angles = (angles[0].to(device), angles[1].to(device))
        heads = weights[0].o.weight_NK.shape[1] // first.head_dim
        kv_heads = (len(weights[0].qkv.weight_NK) // first.head_dim - heads) // 2
        scale = first.head_dim**-0.5 if first.scale is None else first.scale
        return cls(weights, angles, heads, kv_heads, first.head_dim, first.eps, scale)

    @property
    def hidden(self) -> int:
        return len(self.layers[0].o.weight_NK)

    @property
    def inner(self) -> int:
        return self.layers[0].down.weight_NK.shape[1]

    @property
    def weights(self) -> Iterable[Weight]:
        """The weights of one layer: all layers have these shapes."""
        first = self.layers[0]
        return first.qkv, first.o, first.gate_up, first.down
