"""Decoder layers: attention and a gated feed-forward layer, each added to the residual stream.

    x = norm(h)                                     or given from outside, for a layer without one
    h = h + o(attention(rotate(q x), rotate(k x), v x))
    h = h + down(silu(gate x) up x),  x = norm(h)

That is Llama's layer with everything its relatives add: biases where the linear layers have them
(Qwen2), norms on queries and keys (Qwen3), latent attention and experts (DeepSeek-V3). An EAGLE-3
drafter is one such layer whose x is made of two vectors.

Legend: R rows, H hidden, X inputs of q, k and v, A query heads, C key-value heads, D head size,
L layers, P positions, T taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from kernels.attention import RowLayout, position_blocked_attention
from kernels.dispatch import Op
from kernels.elementwise import rms_norm, rotate, silu_mul
from kernels.experts import Mixture
from kernels.kv_pages import KvPages
from kernels.linear import Linear, padded_rows

Angles = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class DecoderLayer:
    """A layer's weights. `input_norm_H` is None if the input of attention is given from outside.

    Where v is k, the rotated keys are their own values.
    """

    q: Linear
    k: Linear
    v: Linear
    o: Linear
    gate: Linear
    up: Linear
    down: Linear
    post_norm_H: torch.Tensor
    head_dim: int
    eps: float
    input_norm_H: torch.Tensor | None = None
    q_norm_D: torch.Tensor | None = None
    k_norm_D: torch.Tensor | None = None
    scale: float | None = None
    """What scores are multiplied by, if it is not 1 / sqrt(head_dim)."""
    experts: Mixture | None = None
    """With experts, gate, up and down are those of the shared one."""


class DecoderStack:
    """Layers of one shape, and cos and sin of every position, [P, D] each."""

    def __init__(self, layers: Sequence[DecoderLayer], angles: Angles) -> None:
        self.layers = tuple(layers)
        self.angles = angles
        self.packed = pack_layers(layers[0].post_norm_H, self.layers)


@Op
def pack_layers(like: torch.Tensor, layers: Sequence[DecoderLayer]) -> Any:
    """What an implementation keeps of layers whose activations are `like` this. Here nothing."""
    del like, layers


@Op
def decode_layers(
    h_RH: torch.Tensor,
    stack: DecoderStack,
    layouts: Sequence[RowLayout],
    kv: KvPages,
    tap_layers: Sequence[int] = (),
    x_RX: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return h after all layers, [R, H], and the inputs of `tap_layers` side by side, [R, T * H].

    Rows are those of one session after the other, in the order of `layouts`; what each session
    adds to its pages, its layout says. `x_RX` is the input of attention in a layer without an input
    norm.
    """
    rows = len(h_RH)
    assert sum(layout.num_rows for layout in layouts) == rows, "each row belongs to a session"
    cos_RD, sin_RD = (_padded(table[_text_positions(layouts)]) for table in stack.angles)
    h_RH, given_RX = _padded(h_RH), None if x_RX is None else _padded(x_RX)
    inputs: dict[int, torch.Tensor] = {}
    for index, layer in enumerate(stack.layers):
        inputs[index] = h_RH
        normed_RX = _input(h_RH, layer, given_RX)
        q_RAD, k_RCD, v_RCD = _heads(normed_RX, layer, (cos_RD, sin_RD))
        out_RAD = torch.zeros_like(q_RAD)
        first = 0
        for layout in layouts:
            mine = slice(first, first := first + layout.num_rows)
            kv.write(index, layout.pool_slots_R, k_RCD[mine], v_RCD[mine])
            out_RAD[mine] = _attend(q_RAD[mine], kv, index, layout, layer.scale)
        h_RH = h_RH + layer.o(out_RAD.flatten(1))
        h_RH = h_RH + _feed_forward(rms_norm(h_RH, layer.post_norm_H, layer.eps), layer, rows)
    inputs[len(stack.layers)] = h_RH
    taps = [inputs[layer][:rows] for layer in tap_layers]
    return h_RH[:rows], torch.cat(taps, dim=-1) if taps else h_RH[:rows, :0]


def _text_positions(layouts: Sequence[RowLayout]) -> torch.Tensor:
    return torch.cat([layout.positions_R + layout.first_position for layout in layouts])


def _attend(
    q_RAD: torch.Tensor, kv: KvPages, layer: int, layout: RowLayout, scale: float | None
) -> torch.Tensor:
    """Return the attention of one session's rows: its queries fill row blocks of their own."""
    q_RX = _padded(q_RAD.flatten(1))
    scale = q_RAD.shape[-1] ** -0.5 if scale is None else scale
    padded_RAD = q_RX.unflatten(1, q_RAD.shape[1:])
    # A faster attention belongs to a faster `decode_layers`: it takes rows that are not padded.
    attention = position_blocked_attention.reference
    out_RAD = attention(padded_RAD, kv, layer, layout.padded, scale)
    return out_RAD[: len(q_RAD)]


def _input(h_RH: torch.Tensor, layer: DecoderLayer, given_RX: torch.Tensor | None) -> torch.Tensor:
    if layer.input_norm_H is not None:
        return rms_norm(h_RH, layer.input_norm_H, layer.eps)
    assert given_RX is not None, "a layer without an input norm needs its input"
    return given_RX


def _padded(x_RX: torch.Tensor) -> torch.Tensor:
    """Return the rows up to whole row blocks: the products of every layer then need no padding."""
    return F.pad(x_RX, (0, 0, 0, padded_rows(len(x_RX)) - len(x_RX)))


def _heads(
    x_RX: torch.Tensor, layer: DecoderLayer, angles: Angles
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries [R, A, D], keys and values [R, C, D], those of them rotated that are."""
    q_RAD, k_RCD = (
        project(x_RX).view(len(x_RX), -1, layer.head_dim) for project in (layer.q, layer.k)
    )
    q_RAD = rotate(_normed(q_RAD, layer.q_norm_D, layer.eps), *angles)
    k_RCD = rotate(_normed(k_RCD, layer.k_norm_D, layer.eps), *angles)
    return q_RAD, k_RCD, k_RCD if layer.v is layer.k else layer.v(x_RX).view_as(k_RCD)


def _feed_forward(x_RH: torch.Tensor, layer: DecoderLayer, rows: int) -> torch.Tensor:
    """Return what the layer adds to the stream. Padding chooses no experts."""
    y_RH = layer.down(silu_mul(layer.gate(x_RH), layer.up(x_RH)))
    return y_RH if layer.experts is None else _padded(layer.experts(x_RH[:rows], y_RH[:rows]))


def _normed(x: torch.Tensor, norm: torch.Tensor | None, eps: float) -> torch.Tensor:
    return x if norm is None else rms_norm(x, norm, eps)
