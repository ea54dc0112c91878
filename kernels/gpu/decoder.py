"""Decoder layers on a GPU: those of kernels/decoder.py, as launches over buffers that stay.

    normed = norm(h)                              or given from outside, to a layer without one
    h += o(attention(rotate(q normed), rotate(k normed), v normed))
    h += down(silu(gate normed) up normed),  normed = norm(h)

A sum and the norm that reads it are one launch, also where the norm is the next layer's.

Legend: R rows, H hidden, X inputs of q, k and v, A query heads, C key-value heads, D head size, F
width of the feed-forward layer, L layers, P positions, T taps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from kernels.decoder import Angles, DecoderLayer
from kernels.gpu.attention_shape import AttentionPlan, StepRows
from kernels.gpu.elementwise import add_rms_norm, rms_norm, silu_mul
from kernels.gpu.linear import linear, scratch_elements
from kernels.gpu.paged_attention import paged_attention
from kernels.gpu.pages import Pages
from kernels.gpu.rotary import rotate_and_store
from kernels.linear import DenseLinear, Linear


class Weight(NamedTuple):
    """A linear layer, or several that read the same rows, one after the other."""

    weight_NK: torch.Tensor
    bias_N: torch.Tensor | None

    @classmethod
    def of(cls, *layers: Linear) -> Weight:
        """Take dense layers. Raises ValueError for other formats and dtypes."""
        dense = [_dense(layer) for layer in layers]
        biases = [layer.bias_N for layer in dense]
        weight_NK = torch.cat([layer.weight_NK for layer in dense])
        if all(bias is None for bias in biases):
            return cls(weight_NK, None)
        padded = [
            layer.weight_NK.new_zeros(len(layer.weight_NK)) if bias is None else bias
            for layer, bias in zip(dense, biases, strict=True)
        ]
        return cls(weight_NK, torch.cat(padded))

    def to(self, device: torch.device) -> Weight:
        """Return it on a device."""
        bias_N = None if self.bias_N is None else self.bias_N.to(device)
        return Weight(self.weight_NK.to(device), bias_N)

    def rows(self, first: int, end: int) -> Weight:
        """Return some of its outputs."""
        bias_N = None if self.bias_N is None else self.bias_N[first:end]
        return Weight(self.weight_NK[first:end], bias_N)


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

    @classmethod
    def of(
        cls, layers: Sequence[DecoderLayer], angles: Angles, device: torch.device | None = None
    ) -> Stack:
        """Take layers of kernels/decoder.py, to `device` one after the other, or where they are.

        Raises ValueError if they are not dense bfloat16.
        """
        first = layers[0]
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


class LayerBuffers(NamedTuple):
    """What a layer writes on its way; all layers of a step use the same. bfloat16."""

    normed_RH: torch.Tensor
    qkv_RN: torch.Tensor
    """Queries, keys and values side by side: they come of one product."""
    queries_RAD: torch.Tensor
    attended_RAD: torch.Tensor
    added_RH: torch.Tensor
    gate_up_R2F: torch.Tensor
    inner_RF: torch.Tensor
    scratch: torch.Tensor
    """float32, for products."""

    def rows(self, count: int) -> LayerBuffers:
        """Return the buffers of the first rows."""
        *of_rows, scratch = self
        return LayerBuffers._make((*(buffer[:count] for buffer in of_rows), scratch))


def new_layer_buffers(
    stack: Stack, rows: int, device: torch.device, others: Iterable[Weight] = ()
) -> LayerBuffers:
    """Return buffers for up to so many rows; the scratch is enough for `others`, too."""
    first = stack.layers[0]
    empty = torch.empty(0, dtype=torch.bfloat16, device=device)
    return LayerBuffers(
        normed_RH=empty.new_zeros(rows, stack.hidden),
        qkv_RN=empty.new_zeros(rows, len(first.qkv.weight_NK)),
        queries_RAD=empty.new_zeros(rows, stack.heads, stack.head_dim),
        attended_RAD=empty.new_zeros(rows, stack.heads, stack.head_dim),
        added_RH=empty.new_zeros(rows, stack.hidden),
        gate_up_R2F=empty.new_zeros(rows, 2 * stack.inner),
        inner_RF=empty.new_zeros(rows, stack.inner),
        scratch=torch.zeros(
            _scratch(rows, [*stack.weights, *others]), dtype=torch.float32, device=device
        ),
    )


def _scratch(rows: int, weights: Iterable[Weight]) -> int:
    """Return what the product that needs most of it needs: few rows may need more than many."""
    counts = {*range(1, min(rows, 64) + 1), rows}
    return max(
        scratch_elements(count, *weight.weight_NK.shape) for weight in weights for count in counts
    )


class Places(NamedTuple):
    """Where a step's rows lie: in their texts, among all slots, and who sees whom."""

    text_positions_R: torch.Tensor
    """int32: what a row is rotated by."""
    slots_R: torch.Tensor
    """`find_slots` of these rows; -1 for padding."""
    rows: StepRows
    plan: AttentionPlan


def decode_layers(
    h_RH: torch.Tensor,
    stack: Stack,
    places: Places,
    pages: Pages,
    buffers: LayerBuffers,
    last_norm_H: torch.Tensor,
    taps_TRH: Mapping[int, torch.Tensor],
    x_RX: torch.Tensor | None = None,
) -> torch.Tensor:
    """Run all layers over `h_RH`, in place, and return its last norm, which lies in `buffers`.

    `taps_TRH` are the buffers that the inputs of some layers are copied to; that of `num_layers`
    takes h after the last one. `x_RX` is the input of attention in a layer without an input norm.
    Buffers have as many rows as h; rows that are padding keep whatever comes of them.
    """
    first_norm_H = stack.layers[0].input_norm_H
    if first_norm_H is not None:
        rms_norm(h_RH, first_norm_H, stack.eps, buffers.normed_RH)
    _tap(taps_TRH, 0, h_RH)
    for index, layer in enumerate(stack.layers):
        read_RX = buffers.normed_RH if x_RX is None else x_RX
        _attend(read_RX, index, stack, places, pages, buffers)
        _add_norm(layer.o, buffers.attended_RAD.flatten(1), h_RH, layer.post_norm_H, stack, buffers)
        _product(layer.gate_up, buffers.normed_RH, buffers.gate_up_R2F, buffers)
        gate_RF, up_RF = buffers.gate_up_R2F.chunk(2, dim=1)
        silu_mul(gate_RF, up_RF, buffers.inner_RF)
        norm_H = last_norm_H
        if index + 1 < len(stack.layers):
            following_H = stack.layers[index + 1].input_norm_H
            assert following_H is not None, "only a single layer is given its input from outside"
            norm_H = following_H
        _add_norm(layer.down, buffers.inner_RF, h_RH, norm_H, stack, buffers)
        _tap(taps_TRH, index + 1, h_RH)
    return buffers.normed_RH


def _tap(taps_TRH: Mapping[int, torch.Tensor], layer: int, h_RH: torch.Tensor) -> None:
    if layer in taps_TRH:
        taps_TRH[layer].copy_(h_RH)


def _attend(
    x_RX: torch.Tensor,
    index: int,
    stack: Stack,
    places: Places,
    pages: Pages,
    buffers: LayerBuffers,
) -> None:
    """Write what rows attend to, before the product that brings it back to the hidden size."""
    layer = stack.layers[index]
    _product(layer.qkv, x_RX, buffers.qkv_RN, buffers)
    heads_RND = buffers.qkv_RN.unflatten(1, (-1, stack.head_dim))
    q_RAD, k_RCD, v_RCD = heads_RND.split((stack.heads, stack.kv_heads, stack.kv_heads), dim=1)
    for head_RND, norm_D in ((q_RAD, layer.q_norm_D), (k_RCD, layer.k_norm_D)):
        if norm_D is not None:
            rms_norm(head_RND, norm_D, stack.eps, head_RND)
    rotate_and_store(
        q_RAD,
        k_RCD,
        v_RCD,
        stack.angles,
        places.text_positions_R,
        places.slots_R,
        *pages,
        index,
        buffers.queries_RAD,
    )
    paged_attention(
        buffers.queries_RAD,
        *pages,
        index,
        stack.scale,
        places.rows,
        places.plan,
        buffers.attended_RAD,
    )


def _product(
    weight: Weight, x_RK: torch.Tensor, out_RN: torch.Tensor, buffers: LayerBuffers
) -> None:
    linear(x_RK, weight.weight_NK, weight.bias_N, out_RN, buffers.scratch)


def _add_norm(
    weight: Weight,
    x_RK: torch.Tensor,
    h_RH: torch.Tensor,
    norm_H: torch.Tensor,
    stack: Stack,
    buffers: LayerBuffers,
) -> None:
    """h += weight x, and its norm."""
    _product(weight, x_RK, buffers.added_RH, buffers)
    add_rms_norm(buffers.added_RH, h_RH, norm_H, stack.eps, h_RH, buffers.normed_RH)
