"""Ancestors, depths and positions of the nodes of many trees, of their parents alone.

What `kernels/tree.py` derives node by node, in six steps for all of them: a node takes over what is
known of the node it points to, and then points where that one does.

Legend: N trees, T places for the nodes of one tree, at most 64; R rows of all trees.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl

MAX_NODES = 64


class Trees(NamedTuple):
    """Trees by their parents. A tree has at least its root; behind its nodes may stand anything."""

    parents_NT: torch.Tensor
    """int32: `parents[i] < i`, and -1 for node 0, the root."""
    sizes_N: torch.Tensor
    """int32: how many nodes there are, with the root."""
    first_rows_N: torch.Tensor
    """int32: the row of the root; those of the other nodes follow it."""


class Geometry(NamedTuple):
    """What is known of each row's node."""

    ancestors_R: torch.Tensor
    """int64: bit i stands for node i of its tree. A node is its own ancestor."""
    depths_R: torch.Tensor
    """int32: the distance from the root."""
    positions_R: torch.Tensor
    """int64: where it lies in the text."""


@triton.jit
@no_type_check
def ancestors_and_depths(parents):
    """The bit masks and depths of a tree; who has no parent, -1, is a root."""
    nodes = tl.arange(0, parents.shape[0])
    known = tl.where(parents < 0, nodes, parents)
    depths = (parents >= 0).to(tl.int32)
    masks = tl.full(parents.shape, 1, tl.int64) << nodes.to(tl.int64)
    for _ in tl.static_range(6):
        masks |= tl.gather(masks, known, 0)
        depths += tl.gather(depths, known, 0)
        known = tl.gather(known, known, 0)
    return masks, depths


@triton.jit
@no_type_check
def _tree_geometry(
    parents_NT,
    sizes_N,
    first_rows_N,
    root_positions_N,
    ancestors_R,
    depths_R,
    positions_R,
    PLACES: tl.constexpr,
    PADDED: tl.constexpr,
):
    tree, nodes = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    there = nodes < tl.load(sizes_N + tree)
    parents = tl.load(parents_NT + tree * PLACES + nodes, mask=there, other=-1)
    ancestors, depths = ancestors_and_depths(parents)
    rows = tl.load(first_rows_N + tree).to(tl.int64) + nodes
    tl.store(ancestors_R + rows, ancestors, mask=there)
    tl.store(depths_R + rows, depths, mask=there)
    tl.store(positions_R + rows, tl.load(root_positions_N + tree) + depths, mask=there)


def tree_geometry(trees: Trees, root_positions_N: torch.Tensor, geometry: Geometry) -> None:
    """Write what is known of each node's row. A root lies where its tree's root position says."""
    num_trees, places = trees.parents_NT.shape
    assert places <= MAX_NODES, f"a tree has at most {MAX_NODES} nodes, not {places}"
    _tree_geometry[(num_trees,)](
        *trees,
        root_positions_N,
        *geometry,
        places,
        triton.next_power_of_2(places),
        num_warps=1,
    )
