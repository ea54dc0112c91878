"""Weights in the order in which the native kernels read them.

Legend: N outputs, K inputs, F width of the feed-forward layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from kernels.decoder import DecoderLayer
from kernels.linear import DenseLinear, Linear
from kernels.normed_linear import NormedLinear
from kernels.quantized_linear import Int4Linear, Int8Linear

# Outputs of a tile: the gate's and up's lie beside each other, tile by tile.
_TILE = 16
MAX_HEAD_DIM = 256


def pack_layers(like: torch.Tensor, layers: Sequence[DecoderLayer]) -> Any:
    """Return the layers packed, or None if the native kernels cannot run them."""
    del like
    first = layers[0]
    if first.head_dim > MAX_HEAD_DIM or first.head_dim % 2 or first.scale is not None:
        return None
    stack = torch.ops.slipstream.new_stack()
    for layer in layers:
        torch.ops.slipstream.add_layer(
            stack,
            _pack(_side_by_side(layer.q, layer.k, layer.v)),
            _pack(_parts(layer.o)),
            _pack(_interleaved(_parts(layer.gate), _parts(layer.up))),
            _pack(_parts(layer.down)),
            *(layer.input_norm_H, layer.post_norm_H, layer.q_norm_D, layer.k_norm_D),
            *(_num_outputs(layer.q) // layer.head_dim, layer.head_dim, layer.eps),
        )
    return stack


def pack_normed_linear(like: torch.Tensor, layer: NormedLinear) -> Any:
    """Return the weight packed, and the norm in float32."""
    del like
    norm_K = layer.norm_K
    return _pack(_parts(layer.linear)), None if norm_K is None else norm_K.float()


Parts = tuple[type[Linear], list[torch.Tensor], torch.Tensor | None]


def _parts(linear: Linear) -> Parts:
    """Return a layer's format, its tensors (all of them [N, ...]) and its bias."""
    match linear:
        case DenseLinear():
            return DenseLinear, [linear.weight_NK], linear.bias_N
        case Int8Linear():
            return Int8Linear, [linear.q_NK, linear.scale_N1], linear.bias_N
        case Int4Linear():
            return Int4Linear, [linear.q_NK, linear.scale_NG.float()], linear.bias_N
    raise AssertionError(f"no packing for {type(linear)}")


def _pack(parts: Parts) -> Any:
    kind, tensors, bias_N = parts
    ops = torch.ops.slipstream
    if kind is DenseLinear:
        return ops.pack_bf16(tensors[0], bias_N)
    if kind is Int8Linear:
        return ops.pack_int8(tensors[0], tensors[1][:, 0].contiguous(), bias_N)
    return ops.pack_int4(*tensors, bias_N)


def _num_outputs(linear: Linear) -> int:
    return len(_parts(linear)[1][0])


def _side_by_side(*linears: Linear) -> Parts:
    """Return one layer whose outputs are those of all, one after the other."""
    kinds, tensors, biases = zip(*map(_parts, linears), strict=True)
    assert len(set(kinds)) == 1, kinds
    joined = [torch.cat(part) for part in zip(*tensors, strict=True)]
    return kinds[0], joined, _joined_biases(biases, [len(part[0]) for part in tensors])


def _joined_biases(
    biases: Sequence[torch.Tensor | None], sizes: Sequence[int]
) -> torch.Tensor | None:
    there = [bias for bias in biases if bias is not None]
    if not there:
        return None
    zeros = there[0].new_zeros
    pairs = zip(biases, sizes, strict=True)
    return torch.cat([zeros(size) if bias is None else bias for bias, size in pairs])


def _interleaved(gate: Parts, up: Parts) -> Parts:
    """Return one layer with a tile of outputs of one beside a tile of the other."""
    kind, width = gate[0], len(gate[1][0])
    tensors = [_alternating(a, b) for a, b in zip(gate[1], up[1], strict=True)]
    biases = [_joined_biases([bias], [width]) for bias in (gate[2], up[2])]
    if biases == [None, None]:
        return kind, tensors, None
    zeros = next(bias for bias in biases if bias is not None).new_zeros(width)
    gate_bias, up_bias = (zeros if bias is None else bias for bias in biases)
    return kind, tensors, _alternating(gate_bias[:, None], up_bias[:, None])[:, 0]


def _alternating(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    padding = (0, 0, 0, -len(a) % _TILE)
    tiles = [F.pad(part, padding).unflatten(0, (-1, 1, _TILE)) for part in (a, b)]
    return torch.cat(tiles, dim=1).flatten(0, 2)
