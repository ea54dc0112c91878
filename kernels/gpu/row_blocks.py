"""What makes a product's rows independent: blocks of 16 rows, and inputs summed in one order.

Every product on tensor cores is [16 rows, inputs] x [inputs, outputs], whatever the batch: on all
chips it becomes the same instruction, `mma.sync` m16n8k16, and an element of the result is one
chain of them, from the first input to the last. A batch of more rows has more blocks; some lie in
one program and share the weights that it read. So a tile's size decides what is read how often,
never what is summed in which order. What only hardware can show: that an element's bits do not
depend on its row within an instruction.

A product with few outputs has too few programs for a whole chip. Its inputs are divided into parts,
whose number depends on the shape of the weight alone:

    y = ((part_0 + part_1) + part_2) + ...,   each part a chain of its own, all in float32

With few rows each part has programs of its own, and what they sum is added by a second kernel. With
many rows one program goes through all parts and adds them: the same sums in the same order.

A block's rows lie anywhere: it knows each by its number, -1 if there is none.

Legend: P parts, R rows, M = 16 rows of a block, N outputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import no_type_check

import torch
import triton
import triton.language as tl

BLOCK_ROWS = tl.constexpr(16)
"""Rows of every product."""
# Twice as many programs as an H200 has processors, so that none waits for a neighbour's loads.
_ENOUGH_PROGRAMS = 264
_PART_INPUTS = 1024
_MAX_PARTS = 8
_NO_SUM = tl.constexpr(-0.0)
_ADD_BLOCK = 1024


@dataclass(frozen=True)
class Tile:
    """What one program computes."""

    blocks: int
    """Blocks of 16 rows."""
    outputs: int
    one_program: bool
    """Whether a program goes through all parts of the inputs."""
    warps: int
    stages: int

    @property
    def rows(self) -> int:
        return 16 * self.blocks


def num_parts(num_outputs: int, num_inputs: int, tile_outputs: int) -> int:
    """Return into how many parts the inputs of a weight are divided: a power of two."""
    tiles = -(-num_outputs // tile_outputs)
    parts = 1
    while parts * tiles < _ENOUGH_PROGRAMS and 2 * parts <= _most_parts(num_inputs):
        parts *= 2
    return parts


def _most_parts(num_inputs: int) -> int:
    return min(_MAX_PARTS, num_inputs // _PART_INPUTS)


def scratch_for(parts: int, tile: Tile, elements: int) -> int:
    """Return how many float32 elements of scratch a product with so many outputs needs."""
    return 0 if parts == 1 or tile.one_program else parts * elements


def check(operands: Iterable[torch.Tensor | None], scratch: torch.Tensor, elements: int) -> None:
    """Raise ValueError for operands that are not contiguous, or too little scratch."""
    for operand in operands:
        if operand is not None and not operand.is_contiguous():
            raise ValueError(f"operands must be contiguous, got strides {operand.stride()}")
    if scratch.numel() < elements:
        raise ValueError(f"{elements} elements of scratch are needed, got {scratch.numel()}")


def sum_up(
    scratch: torch.Tensor, parts: int, bias_N: torch.Tensor | None, out_RN: torch.Tensor
) -> None:
    """Add what the programs of all parts wrote, and a bias, to `out_RN`."""
    _add_parts[(triton.cdiv(out_RN.numel(), _ADD_BLOCK),)](
        scratch,
        bias_N,
        out_RN,
        len(out_RN),
        N=out_RN.shape[1],
        PARTS=parts,
        HAS_BIAS=bias_N is not None,
        BLOCK=_ADD_BLOCK,
    )


@triton.jit
@no_type_check
def find_tile(rows, N: tl.constexpr, BLOCKS: tl.constexpr, OUTPUTS: tl.constexpr):
    """Return a program's first row, first output and part. Tiles of the same weights are together,
    so that memory gives them once and the cache the other times.
    """
    row_tiles, output_tiles = tl.cdiv(rows, BLOCKS * BLOCK_ROWS), tl.cdiv(N, OUTPUTS)
    tile = tl.program_id(0) // row_tiles
    first_row = tl.program_id(0) % row_tiles * (BLOCKS * BLOCK_ROWS)
    return first_row, tile % output_tiles * OUTPUTS, tile // output_tiles


@triton.jit
@no_type_check
def rows_from(first, end, BLOCKS: tl.constexpr):
    """Return the numbers of consecutive rows, [16] a block."""
    found = ()
    for block in tl.static_range(BLOCKS):
        rows = first + block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        found = found + (tl.where(rows < end, rows, -1).to(tl.int64),)
    return found


@triton.jit
@no_type_check
def no_sums(BLOCKS: tl.constexpr, OUTPUTS: tl.constexpr):
    """Return sums of nothing, [16, N] a block: a -0, to which anything adds as it is."""
    return (tl.full([BLOCK_ROWS, OUTPUTS], _NO_SUM, tl.float32),) * BLOCKS


@triton.jit
@no_type_check
def add_sums(sums, others, BLOCKS: tl.constexpr):
    """Return the sums of two sums, block by block."""
    added = ()
    for block in tl.static_range(BLOCKS):
        added = added + (sums[block] + others[block],)
    return added


@triton.jit
@no_type_check
def add_products(
    x_RK, row_stride, weight_KN, rows, inputs, sums, K: tl.constexpr, BLOCKS: tl.constexpr
):
    """Add the products of some inputs with their weights to the sums of all blocks."""
    added = ()
    for block in tl.static_range(BLOCKS):
        there = (rows[block] >= 0)[:, None] & (inputs < K)[None, :]
        places = x_RK + rows[block][:, None] * row_stride + inputs[None, :]
        x = tl.load(places, mask=there, other=0.0)
        added = added + (tl.dot(x, weight_KN, sums[block]),)
    return added


@triton.jit
@no_type_check
def keep_sums(
    out_RN,
    row_stride,
    bias_N,
    rows,
    sums,
    first_output,
    N: tl.constexpr,
    BLOCKS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):
    """Add a bias, round and store the sums of all blocks."""
    outputs = first_output + tl.arange(0, OUTPUTS)
    for block in tl.static_range(BLOCKS):
        y = sums[block]
        if HAS_BIAS:
            bias = tl.load(bias_N + outputs, mask=outputs < N, other=0.0)
            y += bias.to(tl.float32)[None, :]
        there = (rows[block] >= 0)[:, None] & (outputs < N)[None, :]
        places = out_RN + rows[block][:, None] * row_stride + outputs[None, :]
        tl.store(places, y.to(out_RN.dtype.element_ty), mask=there)


@triton.jit(do_not_specialize=["rows"])
@no_type_check
def _add_parts(
    parts_PRN,
    bias_N,
    out_RN,
    rows,
    N: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """y = part_0 + part_1 + ... + bias, in this order, rounded once."""
    elements = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    size = rows.to(tl.int64) * N
    real = elements < size
    total = tl.load(parts_PRN + elements, mask=real, other=0.0)
    for part in tl.static_range(1, PARTS):
        total += tl.load(parts_PRN + part * size + elements, mask=real, other=0.0)
    if HAS_BIAS:
        total += tl.load(bias_N + elements % N, mask=real, other=0.0).to(tl.float32)
    tl.store(out_RN + elements, total.to(out_RN.dtype.element_ty), mask=real)
