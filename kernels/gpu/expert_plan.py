"""Which rows an expert multiplies: pairs of a row and one of its choices, in order of the experts.

    tile t: `count` pairs from `begin` in the order, all of one expert

A program an expert: each counts the pairs of all experts, so that it knows what lies before its own
without asking another program, and then writes its own pairs and tiles. The number of tiles is that
of the worst case; those that are not needed have no pairs. Nothing leaves the device.

Legend: R rows, C choices of a row, Q = R C pairs, E experts, T tiles, X = E padded to a power of 2.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl

from kernels.gpu.packed_memory import Piece, Pieces

_PAIRS = tl.constexpr(1024)
"""Looked at together."""


class ExpertPlan(NamedTuple):
    """Scratch that holds the plan of a step; all int32."""

    order_Q: torch.Tensor
    """Numbers of pairs, row C + choice, expert by expert."""
    expert_T: torch.Tensor
    begin_T: torch.Tensor
    count_T: torch.Tensor
    tile_rows: int


def max_tiles(num_pairs: int, num_experts: int, tile_rows: int) -> int:
    """Return how many tiles there can be: one an expert that is used, and the full ones."""
    used = min(num_pairs, num_experts)
    return used + (num_pairs - used) // tile_rows


def plan_pieces(num_pairs: int, num_experts: int, tile_rows: int) -> Pieces:
    """Return the types and shapes of a plan's tensors for exactly so many pairs."""
    tiles = Piece(torch.int32, (max_tiles(num_pairs, num_experts, tile_rows),))
    return {
        "order_Q": Piece(torch.int32, (num_pairs,)),
        **dict.fromkeys(("expert_T", "begin_T", "count_T"), tiles),
    }


def plan_experts(experts_RC: torch.Tensor, num_experts: int, plan: ExpertPlan) -> None:
    """Write the plan of a step. A choice of -1 is none."""
    _plan[(num_experts,)](
        experts_RC,
        plan.order_Q,
        plan.expert_T,
        plan.begin_T,
        plan.count_T,
        experts_RC.numel(),
        len(plan.count_T),
        TILE_ROWS=plan.tile_rows,
        E=num_experts,
        X=triton.next_power_of_2(num_experts + 1),
        num_warps=4,
    )


@triton.jit(do_not_specialize=["num_pairs", "num_tiles"])
@no_type_check
def _plan(
    experts_RC,
    order_Q,
    expert_T,
    begin_T,
    count_T,
    num_pairs,
    num_tiles,
    TILE_ROWS: tl.constexpr,
    E: tl.constexpr,
    X: tl.constexpr,
):
    """Write the pairs and tiles of one expert; the last one empties the tiles that are left."""
    mine = tl.program_id(0)
    experts_X = tl.arange(0, X)
    counts_X = _count(experts_RC, num_pairs, E, X)
    tiles_X = tl.cdiv(counts_X, TILE_ROWS)
    begin = tl.sum(tl.where(experts_X < mine, counts_X, 0))
    count = tl.sum(tl.where(experts_X == mine, counts_X, 0))
    first_tile = tl.sum(tl.where(experts_X < mine, tiles_X, 0))
    if count > 0:
        _write_order(experts_RC, order_Q + begin, num_pairs, mine)
        for tile in range(tl.cdiv(count, TILE_ROWS)):
            tl.store(expert_T + first_tile + tile, mine)
            tl.store(begin_T + first_tile + tile, begin + tile * TILE_ROWS)
            tl.store(count_T + first_tile + tile, tl.minimum(count - tile * TILE_ROWS, TILE_ROWS))
    if mine == E - 1:
        for tile in range(first_tile + tl.cdiv(count, TILE_ROWS), num_tiles):
            tl.store(count_T + tile, 0)


@triton.jit
@no_type_check
def _count(experts_RC, num_pairs, E: tl.constexpr, X: tl.constexpr):
    """Return how many pairs each expert has, [X]; those without an expert have number E."""
    counts_X = tl.zeros([X], tl.int32)
    for first in range(0, num_pairs, _PAIRS):
        pairs = first + tl.arange(0, _PAIRS)
        experts = tl.load(experts_RC + pairs, mask=pairs < num_pairs, other=-1)
        counts_X += tl.histogram(tl.where(experts < 0, E, experts), X)
    return tl.where(tl.arange(0, X) < E, counts_X, 0)


@triton.jit
@no_type_check
def _write_order(experts_RC, order_Q, num_pairs, mine):
    """Write the pairs of one expert, the first rows first."""
    written = 0
    for first in range(0, num_pairs, _PAIRS):
        pairs = first + tl.arange(0, _PAIRS)
        is_mine = tl.load(experts_RC + pairs, mask=pairs < num_pairs, other=-1) == mine
        places = written + tl.cumsum(is_mine.to(tl.int32), 0) - 1
        tl.store(order_Q + places, pairs, mask=is_mine)
        written += tl.sum(is_mine.to(tl.int32))
