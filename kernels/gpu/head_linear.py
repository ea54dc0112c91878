"""A linear layer a head: y_a = W_a x_a, summed in float32, rounded once.

Latent attention has two: queries are brought to the latent that all heads share, and what attention
returns of it to each head's value. Heads may lie in wider rows: queries beside what is rotated of
them.

Tiles change no bit (see `row_blocks`): inputs are few, so a sum is one chain over all of them.

Legend: R rows, A heads, N outputs, K inputs.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

from kernels.gpu.row_blocks import Tile, add_products, keep_sums, no_sums, rows_from

_NARROW = Tile(blocks=1, outputs=32, one_program=True, warps=4, stages=4)
_WIDE = Tile(blocks=4, outputs=64, one_program=True, warps=4, stages=3)
_STEP = tl.constexpr(64)
"""Inputs between two loads."""


def head_linear(x_RAK: torch.Tensor, weight_ANK: torch.Tensor, out_RAN: torch.Tensor) -> None:
    """Write y to `out_RAN`, which may lie in wider heads, as x may. All are bfloat16.

    Raises ValueError for weights that are not contiguous.
    """
    if not weight_ANK.is_contiguous():
        raise ValueError(f"weights must be contiguous, got strides {weight_ANK.stride()}")
    assert x_RAK.stride(2) == out_RAN.stride(2) == 1, "the elements of a head lie side by side"
    rows, (heads, outputs, inputs) = len(x_RAK), weight_ANK.shape
    tile = tile_for(rows)
    _multiply[(triton.cdiv(rows, tile.rows), triton.cdiv(outputs, tile.outputs), heads)](
        x_RAK,
        *x_RAK.stride()[:2],
        weight_ANK,
        out_RAN,
        *out_RAN.stride()[:2],
        rows,
        N=outputs,
        K=inputs,
        BLOCKS=tile.blocks,
        OUTPUTS=tile.outputs,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def tile_for(rows: int) -> Tile:
    """Return the tile for so many rows."""
    return _NARROW if rows <= _NARROW.rows else _WIDE


@triton.jit(do_not_specialize=["num_rows"])
@no_type_check
def _multiply(
    x_RAK,
    x_row,
    x_head,
    weight_ANK,
    out_RAN,
    out_row,
    out_head,
    num_rows,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCKS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    """One tile of rows and outputs of one head."""
    rows = rows_from(tl.program_id(0) * (BLOCKS * 16), num_rows, BLOCKS)
    first_output, head = tl.program_id(1) * OUTPUTS, tl.program_id(2)
    outputs = first_output + tl.arange(0, OUTPUTS)
    lines_N = weight_ANK + (head.to(tl.int64) * N + outputs[:, None]) * K
    sums = no_sums(BLOCKS, OUTPUTS)
    for step in range((K + _STEP - 1) // _STEP):
        inputs = tl.arange(0, _STEP) + step * _STEP
        there = (outputs < N)[:, None] & (inputs < K)[None, :]
        weight_KN = tl.trans(tl.load(lines_N + inputs[None, :], mask=there, other=0.0))
        sums = add_products(x_RAK + head * x_head, x_row, weight_KN, rows, inputs, sums, K, BLOCKS)
    keep_sums(
        out_RAN + head * out_head,
        out_row,
        None,
        rows,
        sums,
        first_output,
        N,
        BLOCKS,
        OUTPUTS,
        False,
    )
