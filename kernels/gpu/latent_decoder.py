"""Layers with latent attention on a GPU: those of kernels/decoder.py, over buffers that stay.

    h += o(value_up sum(weight c))                over what rows see, c of keys [c, rotate(r)]
    h += feed_forward(normed),  normed = norm(h)

As in `decoder`, a sum and the norm that reads it are one launch, also where the norm is the next
layer's.

Legend: R rows, H hidden, A heads, L latent, E rotated, D = L + E a key, N a head's part that is not
rotated, V a head's value, Q the queries' smaller vector, X anything, T taps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch

from kernels.gpu.decoder import Places, add_norm, product_scratch, tap
from kernels.gpu.elementwise import rms_norm
from kernels.gpu.feed_forward import (
    FeedForwardBuffers,
    feed_forward,
    find_live,
    new_feed_forward_buffers,
)
from kernels.gpu.head_linear import head_linear
from kernels.gpu.latent_attention import latent_attention
from kernels.gpu.latent_stack import LatentAttention, LatentStack
from kernels.gpu.linear import linear
from kernels.gpu.pages import Pages
from kernels.gpu.rotary import rotate_and_store
from kernels.gpu.stack import Weight


class LatentBuffers(NamedTuple):
    """What a layer writes on its way; all layers of a step use the same. bfloat16."""

    normed_RH: torch.Tensor
    added_RH: torch.Tensor
    down_RX: torch.Tensor
    """The queries' smaller vector, or queries written out, and the key: they are one product."""
    low_RQ: torch.Tensor
    """The smaller vector, normed. Without one it has no elements, and `up` neither."""
    up_RX: torch.Tensor
    queries_RAD: torch.Tensor
    attended_RAL: torch.Tensor
    values_RAV: torch.Tensor
    feed_forward: FeedForwardBuffers
    scratch: torch.Tensor
    """float32, for products."""

    def rows(self, count: int) -> LatentBuffers:
        """Return the buffers of the first rows."""
        *of_rows, of_feed_forward, scratch = self
        firsts = (buffer[:count] for buffer in of_rows)
        return LatentBuffers._make((*firsts, of_feed_forward.rows(count), scratch))


def new_latent_buffers(
    stack: LatentStack, rows: int, device: torch.device, others: Iterable[Weight] = ()
) -> LatentBuffers:
    """Return buffers for up to so many rows; the scratch is enough for `others`, too."""
    first = stack.layers[0].attention
    norm_Q, up = first.query_norm_Q, first.query_up
    _, value_dim, latent = first.value_up_AVL.shape
    layers = [layer.feed_forward for layer in stack.layers]
    scratch = product_scratch(rows, [*stack.weights, *others])
    empty = torch.empty(0, dtype=torch.bfloat16, device=device)
    return LatentBuffers(
        normed_RH=empty.new_zeros(rows, stack.hidden),
        added_RH=empty.new_zeros(rows, stack.hidden),
        down_RX=empty.new_zeros(rows, len(first.down.weight_NK)),
        low_RQ=empty.new_zeros(rows, 0 if norm_Q is None else len(norm_Q)),
        up_RX=empty.new_zeros(rows, 0 if up is None else len(up.weight_NK)),
        queries_RAD=empty.new_zeros(rows, stack.heads, stack.head_dim),
        attended_RAL=empty.new_zeros(rows, stack.heads, latent),
        values_RAV=empty.new_zeros(rows, stack.heads, value_dim),
        feed_forward=new_feed_forward_buffers(layers, rows, device),
        scratch=torch.zeros(scratch, dtype=torch.float32, device=device),
    )


def decode_latent_layers(
    h_RH: torch.Tensor,
    stack: LatentStack,
    places: Places,
    pages: Pages,
    buffers: LatentBuffers,
    last_norm_H: torch.Tensor,
    taps_TRH: Mapping[int, torch.Tensor],
) -> torch.Tensor:
    """Run all layers over `h_RH`, in place, and return its last norm, which lies in `buffers`.

    Taps and padding are as in `decoder.decode_layers`.
    """
    norms = [layer.input_norm_H for layer in stack.layers]
    rms_norm(h_RH, norms[0], stack.eps, buffers.normed_RH)
    find_live(places.slots_R, buffers.feed_forward)
    tap(taps_TRH, 0, h_RH)
    for index, next_norm_H in enumerate([*norms[1:], last_norm_H]):
        layer = stack.layers[index]
        _attend(index, stack, places, pages, buffers)
        linear(buffers.values_RAV.flatten(1), *layer.attention.o, buffers.added_RH, buffers.scratch)
        add_norm(h_RH, layer.post_norm_H, stack, buffers)
        feed_forward(
            layer.feed_forward,
            buffers.normed_RH,
            buffers.feed_forward,
            buffers.scratch,
            buffers.added_RH,
        )
        add_norm(h_RH, next_norm_H, stack, buffers)
        tap(taps_TRH, index + 1, h_RH)
    return buffers.normed_RH


def _attend(
    index: int, stack: LatentStack, places: Places, pages: Pages, buffers: LatentBuffers
) -> None:
    """Write the values of all heads, before the product that brings them to the hidden size."""
    layer, latent = stack.layers[index].attention, stack.latent
    linear(buffers.normed_RH, *layer.down, buffers.down_RX, buffers.scratch)
    key_RD = buffers.down_RX[:, -stack.head_dim :]
    rms_norm(key_RD[:, :latent], layer.key_norm_L, stack.eps, key_RD[:, :latent])
    queries_RAX = _queries(layer, stack, buffers).unflatten(1, (stack.heads, -1))
    unrotated = layer.key_up_ALN.shape[2]
    head_linear(queries_RAX[..., :unrotated], layer.key_up_ALN, buffers.queries_RAD[..., :latent])
    rotate_and_store(
        queries_RAX[..., unrotated:],
        key_RD[:, None],
        None,
        stack.angles,
        places.text_positions_R,
        places.slots_R,
        pages.keys_PLCSD,
        None,
        index,
        buffers.queries_RAD[..., latent:],
    )
    latent_attention(
        buffers.queries_RAD,
        pages.keys_PLCSD,
        index,
        stack.scale,
        places.rows,
        places.plan,
        buffers.attended_RAL,
    )
    head_linear(buffers.attended_RAL, layer.value_up_AVL, buffers.values_RAV)


def _queries(layer: LatentAttention, stack: LatentStack, buffers: LatentBuffers) -> torch.Tensor:
    """Return queries written out: they were all of `down` but the key, or come of its norm."""
    first_RX = buffers.down_RX[:, : -stack.head_dim]
    if layer.query_up is None or layer.query_norm_Q is None:
        return first_RX
    rms_norm(first_RX, layer.query_norm_Q, stack.eps, buffers.low_RQ)
    linear(buffers.low_RQ, *layer.query_up, buffers.up_RX, buffers.scratch)
    return buffers.up_RX
