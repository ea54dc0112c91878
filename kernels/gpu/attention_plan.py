"""Who attends to what in one step: found on the device before the first layer, used by all layers.

Rows of a tile share the keys of the committed prefix. After its last whole page, rows of a tree see
keys along their own paths. A tile takes its *leaves* in turn (rows that no other row of the tile
continues), each together with the rows on its path: a chain is a tree with one leaf.

Whether parts are items of their own depends on how many there are. It changes nothing in what a row
gets: parts are added in one order (see `attention_parts`). Nothing here waits for the device.

Legend: see `attention_shape`; I, J rows of a tile, K = 64 nodes of a tree.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.gpu.attention_shape import (
    TAIL_LEN,
    AttentionPlan,
    PlanBuffers,
    StepRows,
)
from kernels.kv_pages import PAGE_LEN

PAGE = tl.constexpr(PAGE_LEN)
TAIL = tl.constexpr(TAIL_LEN)
NODES = tl.constexpr(64)
"""The most nodes of a tree: the bits of a mask."""


def plan_attention(rows: StepRows, plan: AttentionPlan) -> None:
    """Fill the plan for the rows of a step."""
    buffers, shape = plan.buffers, plan.shape
    _share_out[(1,)](rows, buffers, len(buffers.sums_WHMV), shape, num_warps=1)
    _find_tails[(len(rows.session_R),)](rows, buffers, shape, num_warps=4)


@triton.jit
def _share_out(
    rows: StepRows, plan: PlanBuffers, most_items: tl.constexpr, shape: tl.constexpr
) -> None:
    """items_n = tiles_n parts_n while they fit, tiles_n otherwise or if tiles alone are enough."""
    n = tl.arange(0, shape.padded_sessions)
    there = n < shape.sessions
    first_N = tl.load(rows.first_row_N1 + n, mask=there, other=0)
    rows_N = tl.load(rows.first_row_N1 + n + 1, mask=there, other=0) - first_N
    prefix_N = tl.load(rows.prefix_len_N + n, mask=there, other=0)
    tiles_N = tl.cdiv(rows_N, shape.tile_rows)
    parts_N = tl.cdiv(prefix_N + tl.maximum(rows_N, NODES), shape.part_len)
    parts_N = tl.where(tiles_N < shape.enough_tiles, parts_N, 1)
    wanted_N = tl.cumsum(tiles_N * parts_N)
    needed_later_N = tl.sum(tiles_N) - tl.cumsum(tiles_N)
    parts_N = tl.where(wanted_N + needed_later_N <= most_items, parts_N, 1)
    items_N = tiles_N * parts_N
    tl.store(plan.parts_N + n, parts_N, mask=there)
    tl.store(plan.first_item_N1 + n, tl.cumsum(items_N) - items_N, mask=there)
    tl.store(plan.first_item_N1 + shape.sessions, tl.sum(items_N))


@triton.jit
def _find_tails(rows: StepRows, plan: PlanBuffers, shape: tl.constexpr) -> None:
    """A row's turn is that of its leaf: the last row of its tile whose path goes through it."""
    row = tl.program_id(0)
    if row < tl.load(rows.first_row_N1 + shape.sessions):
        session = tl.load(rows.session_R + row)
        i = (row - tl.load(rows.first_row_N1 + session)) % shape.tile_rows
        first = row - i
        i_I = tl.arange(0, shape.padded_rows)
        end = tl.load(rows.first_row_N1 + session + 1)
        there_I = (i_I < shape.tile_rows) & (first + i_I < end)
        path_I = tl.load(rows.ancestors_R + first + i_I, mask=there_I, other=0)
        leaf_I = _leaves(path_I, there_I, i_I)
        leaf = tl.sum(tl.where(i_I == i, leaf_I, 0))
        turn = tl.sum((there_I & (leaf_I == i_I) & (i_I < leaf)).to(tl.int32))
        tl.store(plan.turn_R + row, turn)
        if (leaf == i) & branches(path_I):
            _store_tail(rows, plan, row, session, first + turn, shape)


@triton.jit
def branches(path_I: tl.tensor) -> tl.tensor:
    """Return whether some path is not of all nodes up to its row."""
    return tl.max(((path_I & (path_I + 1)) != 0).to(tl.int32), axis=0) != 0


@triton.jit
def _leaves(path_I: tl.tensor, there_I: tl.tensor, i_I: tl.tensor) -> tl.tensor:
    """Return the last row whose path goes through each row."""
    through_IJ = (path_I[:, None] & path_I[None, :]) == path_I[:, None]
    return tl.max(tl.where(through_IJ & there_I[None, :], i_I[None, :], 0), axis=1)


@triton.jit
def _store_tail(
    rows: StepRows,
    plan: PlanBuffers,
    row: tl.tensor,
    session: tl.tensor,
    out_row: tl.tensor,
    shape: tl.constexpr,
) -> None:
    slots_T = _path_slots(
        tl.load(rows.prefix_len_N + session),
        tl.load(rows.positions_R + row),
        tl.load(rows.ancestors_R + row),
    )
    page_T = tl.load(rows.pages_NX + session.to(tl.int64) * shape.pages + slots_T // PAGE)
    out_T = plan.tail_slots_RT + out_row.to(tl.int64) * TAIL + tl.arange(0, TAIL)
    tl.store(out_T, page_T * PAGE + slots_T % PAGE)


@triton.jit
def _path_slots(prefix_len: tl.tensor, position: tl.tensor, path: tl.tensor) -> tl.tensor:
    """Return the session's slots of the positions after whole pages; after `position`, its own."""
    node_K = tl.arange(0, NODES)
    on_path_K = ((path >> node_K.to(tl.int64)) & 1).to(tl.int32)
    depth_K = tl.where(on_path_K != 0, tl.cumsum(on_path_K) - 1, -1)
    position_T = tl.minimum(prefix_len // PAGE * PAGE + tl.arange(0, TAIL), position)
    depth_T = position_T - prefix_len
    found_TK = depth_T[:, None] == depth_K[None, :]
    node_T = tl.sum(tl.where(found_TK & (depth_T >= 0)[:, None], node_K[None, :], 0), axis=1)
    return tl.where(depth_T < 0, position_T, prefix_len + node_T)
