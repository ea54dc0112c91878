"""Layers with latent attention as kernels for GPUs read them; formulas in kernels/latent_attention.

    queries' smaller vector and the key, in one product:  [down_q, down_k] x
    query_a = [key_up_a^T n_a, rotate(t_a)],   [n_a, t_a] = up_q norm(down_q x)
    key = [norm(c), rotate(r)],   [c, r] = down_k x

A key lies as [latent, rotated], and its rotated part as the halves that `rotate_and_store` turns:
checkpoints pair neighbours, so outputs that are rotated change places, the even ones first.

Legend: A heads, L latent, E rotated, D = L + E a key, N a head's part that is not rotated, V a
head's value, Q the queries' smaller vector, H hidden, P positions, X outputs of a head, K inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from kernels.decoder import Angles, DecoderLayer
from kernels.gpu.feed_forward import FeedForward
from kernels.gpu.latent_attention import check_sizes
from kernels.gpu.stack import Gather, Weight
from kernels.latent_attention import (
    LatentKeys,
    LatentOutput,
    LatentQueries,
    rotated_angles,
)


class LatentAttention(NamedTuple):
    """The attention of a layer. Without a smaller vector, `down` gives queries written out."""

    down: Weight
    query_norm_Q: torch.Tensor | None
    query_up: Weight | None
    key_up_ALN: torch.Tensor
    key_norm_L: torch.Tensor
    value_up_AVL: torch.Tensor
    o: Weight

    @classmethod
    def of(cls, layer: DecoderLayer) -> LatentAttention:
        """Take a layer of kernels/decoder.py. Raises ValueError if it is not dense bfloat16."""
        queries, keys, output = layer.q, layer.k, layer.o
        assert isinstance(queries, LatentQueries), "queries, keys and output are latent together"
        assert isinstance(keys, LatentKeys)
        assert isinstance(output, LatentOutput)
        heads, rotated = len(queries.key_up_ALN), output.rotated
        up = _halves(Weight.of(queries.up), heads, rotated)
        down_k = _halves(Weight.of(keys.down.down), 1, rotated)
        down_q = up if queries.down is None else Weight.of(queries.down.down)
        return cls(
            Weight.joined(down_q, down_k),
            None if queries.down is None else queries.down.norm_L,
            None if queries.down is None else up,
            queries.key_up_ALN.contiguous(),
            keys.down.norm_L,
            output.value_up_AVL.contiguous(),
            Weight.of(output.out),
        )

    def to(self, device: torch.device) -> LatentAttention:
        """Return it on a device."""
        return LatentAttention._make(part if part is None else part.to(device) for part in self)

    @property
    def weights(self) -> Iterable[Weight]:
        """What whole rows are multiplied with."""
        up = () if self.query_up is None else (self.query_up,)
        return self.down, *up, self.o


def _halves(weight: Weight, heads: int, rotated: int) -> Weight:
    """Return a weight whose heads end with what is rotated, the even of these outputs first."""

    def turned(x: torch.Tensor) -> torch.Tensor:
        heads_AX = x.unflatten(0, (heads, -1))
        kept, pairs = heads_AX[:, :-rotated], heads_AX[:, -rotated:]
        return torch.cat((kept, pairs[:, 0::2], pairs[:, 1::2]), dim=1).flatten(0, 1)

    bias_N = None if weight.bias_N is None else turned(weight.bias_N)
    return Weight(turned(weight.weight_NK), bias_N)


class LatentLayer(NamedTuple):
    """A layer's weights."""

    attention: LatentAttention
    feed_forward: FeedForward
    input_norm_H: torch.Tensor
    post_norm_H: torch.Tensor

    @classmethod
    def of(cls, layer: DecoderLayer, device: torch.device) -> LatentLayer:
        """Take a layer of kernels/decoder.py to a device.

        Raises ValueError for weights that kernels for GPUs do not take.
        """
        assert layer.input_norm_H is not None, "a layer of a whole model norms its input"
        return cls(
            LatentAttention.of(layer).to(device),
            FeedForward.of(layer, device),
            layer.input_norm_H.to(device),
            layer.post_norm_H.to(device),
        )


@dataclass(frozen=True)
class LatentStack:
    """Layers of one kind of attention, and cos and sin of every position, [P, E] each."""

    layers: tuple[LatentLayer, ...]
    angles: Angles
    eps: float
    scale: float
    gather: Gather | None = None
    """None if the layers are whole."""

    @classmethod
    def of(
        cls, layers: Sequence[DecoderLayer], angles: Angles, device: torch.device
    ) -> LatentStack:
        """Take layers of kernels/decoder.py to a device, one after the other.

        Raises ValueError for sizes and weights that kernels for GPUs do not take, with the layer.
        """
        first = layers[0]
        assert isinstance(first.o, LatentOutput), "these layers have latent attention"
        assert first.scale is not None, "latent scores have a scale of their own"
        rotated = first.o.rotated
        check_sizes(first.head_dim - rotated, rotated)
        cos_PE, sin_PE = (x.to(device) for x in rotated_angles(*angles, rotated))
        weights = tuple(_layer(index, layer, device) for index, layer in enumerate(layers))
        kinds = {layer.feed_forward.kind_of_experts for layer in weights} - {None}
        if len(kinds) > 1:
            raise ValueError(f"kernels for GPUs take layers with experts of one kind, got {kinds}")
        return cls(weights, (cos_PE, sin_PE), first.eps, first.scale)

    @property
    def hidden(self) -> int:
        return len(self.layers[0].post_norm_H)

    @property
    def heads(self) -> int:
        return len(self.layers[0].attention.key_up_ALN)

    @property
    def latent(self) -> int:
        return len(self.layers[0].attention.key_norm_L)

    @property
    def head_dim(self) -> int:
        """Of the key that all heads share."""
        return self.latent + self.angles[0].shape[1]

    @property
    def weights(self) -> Iterable[Weight]:
        """What rows are multiplied with, of all layers."""
        for layer in self.layers:
            yield from layer.attention.weights
            yield from layer.feed_forward.weights


def _layer(index: int, layer: DecoderLayer, device: torch.device) -> LatentLayer:
    try:
        return LatentLayer.of(layer, device)
    except ValueError as error:
        raise ValueError(f"layer {index}: {error}") from None
