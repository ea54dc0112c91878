"""How the rows and query heads of a step fill tiles, and what a step's attention reads and keeps.

    tile   some rows of one session with their query heads: the lines of one product
    part   the keys of 1,024 absolute positions. What a row sums over a part, it sums block by block
    item   a tile and one of its parts, or all of them in order: what a program does at a time

Legend: R rows, N sessions (N1 = N + 1), X pages of a session, T = 128 positions of a tail, W items,
H tiles of heads, M lines of a tile, V elements of a value, up to a power of two.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from kernels.kv_pages import PAGE_LEN

TAIL_LEN = 2 * PAGE_LEN
"""Positions after the last whole page of a prefix: fewer than 64, and a path of at most 64."""


class StepRows(NamedTuple):
    """The rows of one step. A session's rows are neighbours, sessions lie in order.

    Row i has position `positions_R[i]` in session `session_R[i]`. Bit k of `ancestors_R[i]` is set
    if node k of its tree, which lies in slot prefix_len + k, is on its path (as is the row itself).
    A path of all nodes up to the row is ones up to its bit, or -1 in a chain of any length.
    Rows from first_row_N1[N] on are padding, of any session. A padding session has no rows and a
    prefix of 0. Masks are int64, all else is int32.
    """

    session_R: torch.Tensor
    positions_R: torch.Tensor
    ancestors_R: torch.Tensor
    first_row_N1: torch.Tensor
    prefix_len_N: torch.Tensor
    pages_NX: torch.Tensor


@dataclass(frozen=True)
class Tiling:
    """How a chip is used. `lines` and `part_blocks` decide a row's bits, the others do not."""

    lines: int
    warps: int
    stages: int
    programs: int
    """As many as run at a time: each does one item after the other."""
    part_blocks: int = 16


@dataclass(frozen=True)
class AttentionShape:
    """What the kernels of a model are compiled for, for one bucket of sessions and their pages."""

    tiling: Tiling
    heads: int
    """Query heads."""
    kv_heads: int
    head_dim: int
    value_dim: int
    layers: int
    sessions: int
    pages: int
    """The most pages of a session, as many as the block table is wide."""

    @property
    def lines(self) -> int:
        return self.tiling.lines

    @property
    def group(self) -> int:
        """Query heads of a key-value head."""
        return self.heads // self.kv_heads

    @property
    def tiles_of_group(self) -> int:
        return -(-self.group // self.lines)

    @property
    def tile_heads(self) -> int:
        """Query heads of a tile."""
        return -(-self.group // self.tiles_of_group)

    @property
    def tile_rows(self) -> int:
        """Rows of a tile: it works for tile_rows * tile_heads lines, and idles for the rest."""
        return self.lines // self.tile_heads

    @property
    def head_tiles(self) -> int:
        """Tiles that the heads of some rows fill."""
        return self.kv_heads * self.tiles_of_group

    @property
    def part_len(self) -> int:
        return self.tiling.part_blocks * PAGE_LEN

    @property
    def enough_tiles(self) -> int:
        """Tiles of rows that keep all programs busy without a division into parts."""
        return -(-self.tiling.programs // self.head_tiles)

    @property
    def padded_sessions(self) -> int:
        return _power_of_2(self.sessions)

    @property
    def padded_rows(self) -> int:
        return _power_of_2(self.tile_rows)

    @property
    def padded_head(self) -> int:
        return _power_of_2(self.head_dim)

    @property
    def padded_value(self) -> int:
        return _power_of_2(self.value_dim)

    def most_tiles(self, rows: int) -> int:
        """Return how many tiles so many rows can need: each session can leave one unfilled."""
        return (rows + self.sessions * (self.tile_rows - 1)) // self.tile_rows


class PlanBuffers(NamedTuple):
    """What `plan_attention` finds for a step, and where layers leave what programs add up."""

    first_item_N1: torch.Tensor
    parts_N: torch.Tensor
    """Items of one tile of the session: its parts, or 1."""
    turn_R: torch.Tensor
    """Which leaf of its tile a row is taken with."""
    tail_slots_RT: torch.Tensor
    """At row i of a tile: where in the pool the keys of its i-th leaf lie, from the first position
    after the whole pages of the prefix."""
    identity_S: torch.Tensor
    """0 to 63: the slots of a page."""
    sums_WHMV: torch.Tensor
    maxima_WHM: torch.Tensor
    masses_WHM: torch.Tensor


@dataclass(frozen=True)
class AttentionPlan:
    """The buffers of one bucket. Layers of a step use them one after the other."""

    shape: AttentionShape
    buffers: PlanBuffers

    def first(self, rows: int, sessions: int) -> AttentionPlan:
        """Return the plan of a smaller bucket, in the first of these buffers, with all items."""
        return AttentionPlan(
            replace(self.shape, sessions=sessions),
            self.buffers._replace(
                first_item_N1=self.buffers.first_item_N1[: sessions + 1],
                parts_N=self.buffers.parts_N[:sessions],
                turn_R=self.buffers.turn_R[:rows],
                tail_slots_RT=self.buffers.tail_slots_RT[:rows],
            ),
        )


def new_plan(shape: AttentionShape, rows: int, items: int, device: torch.device) -> AttentionPlan:
    """Return the buffers for a bucket of rows.

    `items` bounds the memory: as long as they fit, parts are items of their own. Raises ValueError
    if there are fewer items than there can be tiles.
    """
    if items < shape.most_tiles(rows):
        raise ValueError(f"{shape.most_tiles(rows)} tiles of rows do not fit into {items} items")
    ints = torch.zeros(0, dtype=torch.int32, device=device)
    floats = torch.zeros(0, device=device)
    lines = (items, shape.head_tiles, shape.lines)
    buffers = PlanBuffers(
        first_item_N1=ints.new_zeros(shape.sessions + 1),
        parts_N=ints.new_zeros(shape.sessions),
        turn_R=ints.new_zeros(rows),
        tail_slots_RT=ints.new_zeros(rows, TAIL_LEN),
        identity_S=torch.arange(PAGE_LEN, dtype=torch.int32, device=device),
        sums_WHMV=floats.new_zeros(*lines, shape.padded_value),
        maxima_WHM=floats.new_zeros(lines),
        masses_WHM=floats.new_zeros(lines),
    )
    return AttentionPlan(shape, buffers)


def _power_of_2(n: int) -> int:
    return 1 << (n - 1).bit_length()
