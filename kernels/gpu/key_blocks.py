"""The rows a program works for, and the keys it visits: blocks of 64 absolute positions.

A part's blocks that all rows of a tile share are visited first, then those after the whole pages of
the prefix: all of them for one leaf, then for the next. All visits are turns of one loop with one
set of products, so a block gives the same bits whether its keys lie in a page or on a path.

Legend: see `attention_shape`; M lines of a tile (a row and a query head each), S = 64 slots.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from kernels.gpu.attention_plan import PAGE, TAIL, branches
from kernels.gpu.attention_shape import PlanBuffers, StepRows


class Tile(NamedTuple):
    """A tile's lines, and where their keys lie."""

    row_M: tl.tensor
    """The line's row; -1 if it has none."""
    head_M: tl.tensor
    until_M: tl.tensor
    """The position of the row, -1 if there is none: what the line sees last."""
    turn_M: tl.tensor
    kv_head: tl.tensor
    part: tl.tensor
    """The part to do; -1 stands for all."""
    last: tl.tensor
    """The last position of a row."""
    own_block: tl.tensor
    """The first block whose keys lie on each row's own path."""
    pages_X: tl.tensor
    tail_slots_RT: tl.tensor
    """From the tile's first row on."""
    identity_S: tl.tensor
    """0 to 63: read in place of a tail, it makes a page's slots with no other registers."""


class Blocks(NamedTuple):
    """The blocks of a part: the first one, how many all lines share, how many are own."""

    first: tl.tensor
    shared: tl.tensor
    own: tl.tensor


@triton.jit
def find_tile(rows: StepRows, plan: PlanBuffers, work: tl.tensor, shape: tl.constexpr) -> Tile:
    """Return the tile of one item and some heads. Items come in order, all heads of each."""
    item, head_tile = work // shape.head_tiles, work % shape.head_tiles
    session, first_row, part = _find_item(rows, plan, item, shape)
    end_row = tl.load(rows.first_row_N1 + session + 1)
    row_M, head_M = _find_lines(first_row, end_row, head_tile, shape)
    has_row_M = row_M >= 0
    until_M = tl.load(rows.positions_R + row_M, mask=has_row_M, other=-1)
    path_M = tl.load(rows.ancestors_R + row_M, mask=has_row_M, other=0)
    last = tl.max(until_M, axis=0)
    # If every path is all the nodes up to its row, keys lie where their positions say.
    own_block = tl.load(rows.prefix_len_N + session) // PAGE
    return Tile(
        row_M,
        head_M,
        until_M,
        tl.load(plan.turn_R + row_M, mask=has_row_M, other=0),
        head_tile // shape.tiles_of_group,
        part,
        last,
        tl.where(branches(path_M), own_block, last // PAGE + 1),
        rows.pages_NX + session.to(tl.int64) * shape.pages,
        plan.tail_slots_RT + first_row.to(tl.int64) * TAIL,
        plan.identity_S,
    )


@triton.jit
def _find_item(
    rows: StepRows, plan: PlanBuffers, item: tl.tensor, shape: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return session, first row and part of an item."""
    n = tl.arange(0, shape.padded_sessions)
    end_N = tl.load(plan.first_item_N1 + 1 + n, mask=n < shape.sessions, other=item + 1)
    session = tl.sum((end_N <= item).to(tl.int32))
    parts = tl.load(plan.parts_N + session)
    within = item - tl.load(plan.first_item_N1 + session)
    first_row = tl.load(rows.first_row_N1 + session) + within // parts * shape.tile_rows
    return session, first_row, tl.where(parts == 1, -1, within % parts)


@triton.jit
def _find_lines(
    first_row: tl.tensor, end_row: tl.tensor, head_tile: tl.tensor, shape: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Return row and query head of each line."""
    m = tl.arange(0, shape.lines)
    row_M = first_row + m // shape.tile_heads
    in_group_M = head_tile % shape.tiles_of_group * shape.tile_heads + m % shape.tile_heads
    head_M = head_tile // shape.tiles_of_group * shape.group + in_group_M
    idle_M = (m >= shape.tile_rows * shape.tile_heads) | (in_group_M >= shape.group)
    return tl.where(idle_M | (row_M >= end_row), -1, row_M), head_M


@triton.jit
def find_parts(tile: Tile, shape: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """Return the first part to do and the end of parts."""
    end = tl.where(tile.part < 0, tile.last // shape.part_len, tile.part) + 1
    return tl.maximum(tile.part, 0), end


@triton.jit
def find_blocks(tile: Tile, part: tl.tensor, shape: tl.constexpr) -> tuple[Blocks, tl.tensor]:
    """Return the blocks of a part, and how many visits they take."""
    first = part * shape.tiling.part_blocks
    end = tl.minimum(tile.last // PAGE + 1, first + shape.tiling.part_blocks)
    shared = tl.maximum(tl.minimum(tile.own_block, end) - first, 0)
    own = tl.maximum(end - first, 0) - shared
    return Blocks(first, shared, own), shared + own * (tl.max(tile.turn_M, axis=0) + 1)


@triton.jit
def find_keys(
    tile: Tile, blocks: Blocks, visit: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return the positions of a visit's keys, their slots in the pool, what each line sees last."""
    k_S = tl.arange(0, PAGE)
    is_own = visit >= blocks.shared
    own_visit = tl.maximum(visit - blocks.shared, 0)
    turn = own_visit // tl.maximum(blocks.own, 1)
    own_visit -= turn * blocks.own
    block = blocks.first + tl.where(is_own, blocks.shared + own_visit, visit)
    page = tl.load(tile.pages_X + block, mask=visit < blocks.shared, other=0)
    own = tile.tail_slots_RT + turn * TAIL + (block - tile.own_block) * PAGE
    slot_S = tl.load(tl.where(is_own, own, tile.identity_S) + k_S) + page * PAGE
    until_M = tl.where(is_own & (tile.turn_M != turn), -1, tile.until_M)
    return block * PAGE + k_S, slot_S, until_M


@triton.jit
def weigh(
    scores_MS: tl.tensor,
    position_S: tl.tensor,
    until_M: tl.tensor,
    top_M: tl.tensor,
    mass_M: tl.tensor,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Return the weights of a block's keys, what earlier sums are multiplied by, maximum and mass.

    A line sees positions up to `until_M`. If it sees none, its maximum stays, what it has is
    multiplied by 1, and zeros are added.
    """
    seen_MS = position_S[None, :] <= until_M[:, None]
    scores_MS = tl.where(seen_MS, scores_MS, -float("inf"))
    new_top_M = tl.maximum(top_M, tl.max(scores_MS, axis=1))
    weights_MS = tl.exp2(scores_MS - new_top_M[:, None])
    kept_M = tl.exp2(top_M - new_top_M)
    mass_M = tl.fma(mass_M, kept_M, tl.sum(weights_MS, axis=1))
    return weights_MS, kept_M, new_top_M, mass_M


@triton.jit
def rows_of_slots(
    slot_S: tl.tensor, layer: tl.tensor, kv_head: tl.tensor, shape: tl.constexpr
) -> tl.tensor:
    """Return where keys of a layer and head lie, counted in rows of the pages."""
    head = layer.to(tl.int64) * shape.kv_heads + kv_head
    page_S = (slot_S // PAGE).to(tl.int64) * (shape.layers * shape.kv_heads) + head
    return page_S * PAGE + slot_S % PAGE
