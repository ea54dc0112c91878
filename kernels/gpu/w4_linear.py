"""A linear layer with 4-bit weights and bfloat16 activations: y = x W^T + b.

    W = bfloat16(q * scale of its group),   sums in float32, rounded once

what `kernels.quantized_linear.Int4Linear` means. Words are loaded once, 16 bytes a thread, and
unpacked in registers, in the places where tensor cores want them: a shift and a mask, 2^23 put
above the nibble (a float32 whose last bits are the nibble), 2^23 + 8 subtracted, both exact; the
product with the scale has 12 bits, so that it is rounded once, to bfloat16.

Rows are in blocks of 16 as in `row_blocks`: 16 rows or fewer, weights are read once; more, 32 rows
a program, and every further 32 read the words from the cache, a quarter of bfloat16's bytes. With
more than 64 rows one program goes through all parts of the inputs.

Legend: R rows, N outputs, K inputs, P parts of the inputs, T steps of 256 inputs, I = 32 words of
one, G = 32 inputs a group; see `packed_int4`.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

from kernels.gpu.packed_int4 import STEP_INPUTS, PackedInt4
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

NARROW = Tile(blocks=1, outputs=128, one_program=False, warps=4, stages=3)
_WIDE = Tile(blocks=2, outputs=128, one_program=False, warps=8, stages=2)
PROMPT = Tile(blocks=2, outputs=128, one_program=True, warps=8, stages=2)
_PROMPT_ROWS = 64
_GROUP = tl.constexpr(32)
_GROUPS = tl.constexpr(8)
"""Of a step, one a nibble of its words."""
_STEP = tl.constexpr(STEP_INPUTS)
# As integers: 2^23 in float32, whose last bits are the integer; and the upper half of a word.
_TWO_23 = tl.constexpr(0x4B000000)
_TWO_23_AND_8 = tl.constexpr(2.0**23 + 8)
_UPPER = tl.constexpr(-0x10000)


def w4_linear(
    x_RK: torch.Tensor,
    weight: PackedInt4,
    bias_N: torch.Tensor | None,
    out_RN: torch.Tensor,
    scratch: torch.Tensor,
) -> None:
    """Write y to `out_RN`, of any float dtype. x and b are bfloat16.

    `scratch` is float32, `scratch_elements` or more; what it holds does not matter.
    Raises ValueError for operands that are not contiguous, or too little scratch.
    """
    rows, outputs = len(x_RK), weight.num_outputs
    needed = scratch_elements(rows, weight)
    check((x_RK, weight.words_NTI, weight.scales_T4N, bias_N, out_RN), scratch, needed)
    tile, parts = tile_for(rows), parts_of(weight)
    tiles = triton.cdiv(rows, tile.rows) * triton.cdiv(outputs, tile.outputs)
    _multiply[(tiles * (parts if needed else 1),)](
        x_RK,
        weight.words_NTI,
        weight.scales_T4N,
        bias_N,
        scratch if needed else out_RN,
        rows,
        N=outputs,
        K=weight.num_inputs,
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
    return _WIDE if rows <= _PROMPT_ROWS else PROMPT


def parts_of(weight: PackedInt4) -> int:
    """Return into how many parts the inputs are divided."""
    return num_parts(weight.num_outputs, weight.num_inputs, NARROW.outputs)


def scratch_elements(rows: int, weight: PackedInt4) -> int:
    """Return how many float32 elements of scratch a product needs."""
    return scratch_for(parts_of(weight), tile_for(rows), rows * weight.num_outputs)


@triton.jit(do_not_specialize=["num_rows"])
@no_type_check
def _multiply(
    x_RK,
    words_NTI,
    scales_T4N,
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
    sums = sum_int4(
        x_RK,
        words_NTI,
        scales_T4N,
        rows,
        first_output,
        part,
        N,
        K,
        PARTS,
        ALL_PARTS,
        BLOCKS,
        OUTPUTS,
    )
    out_PRN += part.to(tl.int64) * num_rows * N
    keep_sums(out_PRN, N, bias_N, rows, sums, first_output, N, BLOCKS, OUTPUTS, HAS_BIAS)


@triton.jit
@no_type_check
def sum_int4(
    x_RK,
    words_NTI,
    scales_T4N,
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
    STEPS: tl.constexpr = (K + _STEP - 1) // _STEP
    words_NTI += first_output.to(tl.int64) * (STEPS * _GROUP)
    scales_T4N += first_output
    left = N - first_output
    if ALL_PARTS:
        sums = no_sums(BLOCKS, OUTPUTS)
        for p in range(PARTS):
            of_p = _sum_part(
                x_RK, words_NTI, scales_T4N, rows, left, p, N, K, PARTS, BLOCKS, OUTPUTS
            )
            sums = add_sums(sums, of_p, BLOCKS)
    else:
        sums = _sum_part(
            x_RK, words_NTI, scales_T4N, rows, left, part, N, K, PARTS, BLOCKS, OUTPUTS
        )
    return sums


@triton.jit
@no_type_check
def _sum_part(
    x_RK,
    words_NTI,
    scales_T4N,
    rows,
    left,
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
    outputs, within = tl.arange(0, OUTPUTS), tl.arange(0, _GROUP)
    real = outputs < left
    sums = no_sums(BLOCKS, OUTPUTS)
    for step in range(part * SPAN, tl.minimum((part + 1) * SPAN, STEPS)):
        places = words_NTI + outputs[:, None] * (STEPS * _GROUP) + (within + step * _GROUP)[None, :]
        words_KN = tl.trans(tl.load(places, mask=real[:, None], other=0))
        for group in tl.static_range(_GROUPS):
            if group % 2 == 0:
                pairs = scales_T4N + outputs + (step * (_GROUPS // 2) + group // 2) * N
                pair_N = tl.load(pairs, mask=real, other=0)
            scale_N = pair_N << 16 if group % 2 == 0 else pair_N & _UPPER
            weight_KN = _unpacked(words_KN >> 4 * group, scale_N.to(tl.float32, bitcast=True))
            inputs = within + (step * _GROUPS + group) * _GROUP
            sums = add_products(x_RK, K, weight_KN, rows, inputs, sums, K, BLOCKS)
    return sums


@triton.jit
@no_type_check
def _unpacked(words_KN, scale_N):
    """The last nibbles of words as weights, rounded once."""
    shifted = ((words_KN & 0xF) | _TWO_23).to(tl.float32, bitcast=True)
    return ((shifted - _TWO_23_AND_8) * scale_N[None, :]).to(tl.bfloat16)
