"""Decoder layers on a GPU: those of kernels/decoder.py, as launches over buffers that stay.

    normed = norm(h)                              or given from outside, to a layer without one
    h += o(attention(rotate(q normed), rotate(k normed), v normed))
    h += down(silu(gate normed) up normed),  normed = norm(h)

A sum and the norm that reads it are one launch, also where the norm is the next layer's.

Legend: R rows, H hidden, X inputs of q, k and v, A query heads, C key-value heads, D head size, F
width of the feed-forward layer, L layers, P positions, T taps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

import torch

from kernels.gpu.attention_shape import AttentionPlan, StepRows
from kernels.gpu.elementwise import add_rms_norm, rms_norm, silu_mul
from kernels.gpu.linear import linear, scratch_elements
from kernels.gpu.paged_attention import paged_attention
from kernels.gpu.pages import Pages
from kernels.gpu.rotary import rotate_and_store
from kernels.gpu.stack import Gather, Stack, Weight


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
            product_scratch(rows, [*stack.weights, *others]), dtype=torch.float32, device=device
        ),
    )


def product_scratch(rows: int, weights: Iterable[Weight]) -> int:
    """Return what the product that needs most of it needs: few rows may need more than many."""
    counts = {*range(1, min(rows, 64) + 1), rows}
    shapes = {weight.weight_NK.shape for weight in weights}
    return max(scratch_elements(count, *shape) for shape in shapes for count in counts)


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
    tap(taps_TRH, 0, h_RH)
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
        tap(taps_TRH, index + 1, h_RH)
    return buffers.normed_RH


def tap(taps_TRH: Mapping[int, torch.Tensor], layer: int, h_RH: torch.Tensor) -> None:
    """Copy the input of a layer if it is tapped."""
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
    keys_PLCSD, values_PLCSD = pages
    assert values_PLCSD is not None, "ordinary keys are not their own values"
    rotate_and_store(
        q_RAD,
        k_RCD,
        v_RCD,
        stack.angles,
        places.text_positions_R,
        places.slots_R,
        keys_PLCSD,
        values_PLCSD,
        index,
        buffers.queries_RAD,
    )
    paged_attention(
        buffers.queries_RAD,
        keys_PLCSD,
        values_PLCSD,
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
    add_norm(h_RH, norm_H, stack, buffers)


class StreamLayers(Protocol):
    """Layers of any kind, as far as the residual stream knows them."""

    @property
    def eps(self) -> float: ...

    @property
    def gather(self) -> Gather | None: ...


class StreamBuffers(Protocol):
    """Where parts of a layer leave what they add to the residual stream, and find its norm."""

    @property
    def added_RH(self) -> torch.Tensor: ...  # noqa: N802

    @property
    def normed_RH(self) -> torch.Tensor: ...  # noqa: N802


def add_norm(
    h_RH: torch.Tensor, norm_H: torch.Tensor, stack: StreamLayers, buffers: StreamBuffers
) -> None:
    """h += what is added, and its norm. Here alone do results of layers meet the stream."""
    added = buffers.added_RH if stack.gather is None else stack.gather(buffers.added_RH)
    add_rms_norm(added, h_RH, norm_H, stack.eps, h_RH, buffers.normed_RH)
