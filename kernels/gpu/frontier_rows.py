"""Where the rows of a frontier lie, and whom they see: found on the device, level after level.

Row (tree, place) of depth d lies in slot real_len + (d - 1) W + place of its session, for which its
ancestors have a bit each, and at position real_len + d - 1, as its path has d rows. A place without
a node is no padding, which comes last; so its row sees what the last real row sees, all of it
written, and is stored nowhere.

Legend: S trees, W places of a frontier, R = S W rows, X pages of a session.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl

from kernels.gpu.frontier import Frontier
from kernels.kv_pages import PAGE_LEN

_PAGE = tl.constexpr(PAGE_LEN)


class Roots(NamedTuple):
    """What trees grow from. A tree that is padding has a `real_len` and a length of 0."""

    real_lens_S: torch.Tensor
    """int32: slots of real rows."""
    lengths_S: torch.Tensor
    """int64: committed tokens, the last of which is the root; one more than the rows' positions."""
    pages_SX: torch.Tensor
    """int32. They have room for the rows of all nodes."""


class FrontierRows(NamedTuple):
    """The rows of a frontier, one tree's after the other's."""

    positions_R: torch.Tensor
    """int32: among the session's slots, for attention."""
    text_positions_R: torch.Tensor
    """int32: what a row is rotated by."""
    ancestors_R: torch.Tensor
    """int64."""
    slots_R: torch.Tensor
    """int64: among those of all pages; -1 without a node."""
    draw_positions_R: torch.Tensor
    """int64: where its children lie in the text."""


def frontier_rows(frontier: Frontier, roots: Roots, depth: int, rows: FrontierRows) -> None:
    """Write the places of a frontier's rows."""
    num_trees, width = frontier.nodes_SW.shape
    _frontier_rows[(num_trees,)](
        frontier.nodes_SW,
        frontier.ancestors_SW,
        *roots,
        *rows,
        depth,
        roots.pages_SX.shape[1],
        width,
        triton.next_power_of_2(width),
        num_warps=1,
    )


@triton.jit(do_not_specialize=["depth"])
@no_type_check
def _frontier_rows(
    nodes_SW,
    ancestors_SW,
    real_lens_S,
    lengths_S,
    pages_SX,
    positions_R,
    text_positions_R,
    ancestors_R,
    slots_R,
    draw_positions_R,
    depth,
    PAGES: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
):
    tree, places = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED_WIDTH)
    there, rows = places < WIDTH, tree * WIDTH + places
    real_len, length = tl.load(real_lens_S + tree), tl.load(lengths_S + tree)
    is_node = tl.load(nodes_SW + rows, mask=there, other=-1) >= 0
    ancestors = tl.load(ancestors_SW + rows, mask=is_node, other=0)
    levels = tl.where(is_node, depth, 0)
    slots = real_len + (depth - 1) * WIDTH + places
    pages = tl.load(pages_SX + tree * PAGES + slots // _PAGE, mask=is_node, other=0)
    tl.store(positions_R + rows, tl.maximum(real_len - 1 + levels, 0), mask=there)
    tl.store(text_positions_R + rows, tl.maximum(length - 2 + levels, 0), mask=there)
    tl.store(ancestors_R + rows, ancestors, mask=there)
    in_pool = pages.to(tl.int64) * _PAGE + slots % _PAGE
    tl.store(slots_R + rows, tl.where(is_node, in_pool, -1), mask=there)
    tl.store(draw_positions_R + rows, length + levels, mask=there)
