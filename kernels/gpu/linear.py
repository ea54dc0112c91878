"""A linear layer with bfloat16 weights: y = x W^T + b, summed in float32, rounded once.

    16 rows or fewer    64 outputs a program; weights are read once, and are all that takes time
    64 rows or fewer    128 outputs and 64 rows a program: weights are still read once
    more (a prompt)     the same tile, but all parts of the inputs in one program

The tile never changes a bit: see `row_blocks`. The rows of a prompt, some megabytes, stay in the
cache. For prompts this is dearer than the largest instructions of a chip (`wgmma`,
`tcgen05`), whose sums are those of 16 inputs as well but need not have the same bits: only a device
can say.

Legend: R rows, N outputs, K inputs, P parts of the inputs.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

from kernels.gpu.row_blocks import (
    Tile,
    add_products,
    add_sums,
    check,
    find_tile,
    keep_sums,
    no_sums,
    num_parts,
    rows_from,
    scratch_for,
    sum_up,
)

NARROW = Tile(blocks=1, outputs=64, one_program=False, warps=4, stages=6)
_WIDE = Tile(blocks=4, outputs=128, one_program=False, warps=4, stages=3)
PROMPT = Tile(blocks=4, outputs=128, one_program=True, warps=4, stages=3)
_STEP = tl.constexpr(64)
"""Inputs between two loads."""


def linear(
    x_RK: torch.Tensor,
    weight_NK: torch.Tensor,
    bias_N: torch.Tensor | None,
    out_RN: torch.Tensor,
    scratch: torch.Tensor,
) -> None:
    """Write y to `out_RN`, of any float dtype. x, W and b are bfloat16.

    `scratch` is float32, `scratch_elements` or more; what it holds does not matter.
    Raises ValueError for operands that are not contiguous, or too little scratch.
    """
    rows, (outputs, inputs) = len(x_RK), weight_NK.shape
    needed = scratch_elements(rows, outputs, inputs)
    check((x_RK, weight_NK, bias_N, out_RN), scratch, needed)
    tile, parts = tile_for(rows), parts_of(outputs, inputs)
    tiles = triton.cdiv(rows, tile.rows) * triton.cdiv(outputs, tile.outputs)
    _multiply[(tiles * (parts if needed else 1),)](
        x_RK,
        weight_NK,
        bias_N,
        scratch if needed else out_RN,
        rows,
        N=outputs,
        K=inputs,
        PARTS=parts,
        ALL_PARTS=parts > 1 and not needed,
        HAS_BIAS=bias_N is not None and not needed,
        BLOCKS=tile.blocks,
        OUTPUTS=tile.outputs,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    if needed:
        sum_up(scratch, parts, bias_N, out_RN)


def tile_for(rows: int) -> Tile:
    """Return the tile for so many rows."""
    if rows <= NARROW.rows:
        return NARROW
    return _WIDE if rows <= _WIDE.rows else PROMPT


def parts_of(outputs: int, inputs: int) -> int:
    """Return into how many parts the inputs are divided."""
    return num_parts(outputs, inputs, NARROW.outputs)


def scratch_elements(rows: int, outputs: int, inputs: int) -> int:
    """Return how many float32 elements of scratch a product needs."""
    return scratch_for(parts_of(outputs, inputs), tile_for(rows), rows * outputs)


@triton.jit(do_not_specialize=["num_rows"])
@no_type_check
def _multiply(
    x_RK,
    weight_NK,
    bias_N,
    out_PRN,
    num_rows,
    N: tl.constexpr,
    K: tl.constexpr,
    PARTS: tl.constexpr,
    ALL_PARTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCKS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    """One tile of outputs, [R, N], of one part of the inputs or of all."""
    first_row, first_output, part = find_tile(num_rows, N, BLOCKS, OUTPUTS)
    rows = rows_from(first_row, num_rows, BLOCKS)
    sums = sum_dense(
        x_RK, weight_NK, rows, first_output, part, N, K, PARTS, ALL_PARTS, BLOCKS, OUTPUTS
    )
    out_PRN += part.to(tl.int64) * num_rows * N
    keep_sums(out_PRN, N, bias_N, rows, sums, first_output, N, BLOCKS, OUTPUTS, HAS_BIAS)


@triton.jit
@no_type_check
def sum_dense(
    x_RK,
    weight_NK,
    rows,
    first_output,
    part,
    N: tl.constexpr,
    K: tl.constexpr,
    PARTS: tl.constexpr,
    ALL_PARTS: tl.constexpr,
    BLOCKS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    """Sum over one part of the inputs or over all, [16, N] a block."""
    if ALL_PARTS:
        sums = no_sums(BLOCKS, OUTPUTS)
        for p in range(PARTS):
            of_p = _sum_part(x_RK, weight_NK, rows, first_output, p, N, K, PARTS, BLOCKS, OUTPUTS)
            sums = add_sums(sums, of_p, BLOCKS)
    else:
        sums = _sum_part(x_RK, weight_NK, rows, first_output, part, N, K, PARTS, BLOCKS, OUTPUTS)
    return sums


@triton.jit
@no_type_check
def _sum_part(
    x_RK,
    weight_NK,
    rows,
    first_output,
    part,
    N: tl.constexpr,
    K: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCKS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    """Sum over one part of the inputs, [16, N] a block."""
    STEPS: tl.constexpr = (K + _STEP - 1) // _STEP
    SPAN: tl.constexpr = (STEPS + PARTS - 1) // PARTS
    outputs = tl.arange(0, OUTPUTS)
    weight_NK += first_output.to(tl.int64) * K
    sums = no_sums(BLOCKS, OUTPUTS)
    for step in range(part * SPAN, tl.minimum((part + 1) * SPAN, STEPS)):
        inputs = tl.arange(0, _STEP) + step * _STEP
        there = (first_output + outputs < N)[:, None] & (inputs < K)[None, :]
        weight = tl.load(weight_NK + outputs[:, None] * K + inputs[None, :], mask=there, other=0.0)
        sums = add_products(x_RK, K, tl.trans(weight), rows, inputs, sums, K, BLOCKS)
    return sums
