"""The walk of an acceptance, `agreed_path` of kernels/tree.py, for all trees at once.

A node agrees if it carries the token chosen at its parent and none of its elder siblings does. A
node is accepted if all of its ancestors agree, so that no step has to wait for the one before it.

Legend: N trees, T places for the nodes of one tree, at most 64; R rows of all trees.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl

from kernels.gpu.tree_geometry import Geometry, Trees


class Walked(NamedTuple):
    """What became of each tree."""

    paths_NT: torch.Tensor
    """int32: the accepted nodes without the root, and -1 behind them."""
    accepted_N: torch.Tensor
    """int32: how many they are."""
    bonus_N: torch.Tensor
    """int64: the token chosen at the last of them."""
    lengths_N: torch.Tensor
    """int64: how many tokens are committed now."""


@triton.jit
@no_type_check
def _agreeing(parents, tokens, wanted):
    """The bit mask of nodes that agree; the root does."""
    nodes = tl.arange(0, parents.shape[0])
    hits = (parents >= 0) & (tokens == wanted)
    hit_parents = tl.where(hits, parents, -1)
    elder = (hit_parents[None, :] == hit_parents[:, None]) & (nodes[None, :] < nodes[:, None])
    first = hits & (tl.sum((elder & hits[None, :]).to(tl.int32), 1) == 0)
    bits = tl.full(parents.shape, 1, tl.int64) << nodes.to(tl.int64)
    return tl.sum(tl.where(first | (nodes == 0), bits, 0), 0)


@triton.jit
@no_type_check
def _tree_walk(
    parents_NT,
    sizes_N,
    first_rows_N,
    tokens_NT,
    chosen_R,
    ancestors_R,
    depths_R,
    committed_lens_N,
    paths_NT,
    accepted_N,
    bonus_N,
    lengths_N,
    PLACES: tl.constexpr,
    PADDED: tl.constexpr,
):
    tree, nodes = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    there, first_row = nodes < tl.load(sizes_N + tree), tl.load(first_rows_N + tree).to(tl.int64)
    parents = tl.load(parents_NT + tree * PLACES + nodes, mask=there, other=-1)
    tokens = tl.load(tokens_NT + tree * PLACES + nodes, mask=there, other=-1)
    wanted = tl.load(chosen_R + first_row + tl.maximum(parents, 0), mask=there, other=-1)
    ancestors = tl.load(ancestors_R + first_row + nodes, mask=there, other=0)
    depths = tl.load(depths_R + first_row + nodes, mask=there, other=0)
    agreeing = _agreeing(parents, tokens, wanted)
    accepted = there & ((ancestors & agreeing) == ancestors)
    count = tl.sum(accepted.to(tl.int32), 0) - 1
    last = tl.max(tl.where(accepted, nodes, 0), 0)
    path = paths_NT + tree * PLACES
    tl.store(
        path + nodes, tl.full([PADDED], -1, tl.int32), mask=(nodes >= count) & (nodes < PLACES)
    )
    tl.store(path + depths - 1, nodes, mask=accepted & (nodes > 0))
    tl.store(accepted_N + tree, count)
    tl.store(bonus_N + tree, tl.load(chosen_R + first_row + last))
    tl.store(lengths_N + tree, tl.load(committed_lens_N + tree) + count + 1)


def tree_walk(
    trees: Trees,
    tokens_NT: torch.Tensor,
    chosen_R: torch.Tensor,
    geometry: Geometry,
    committed_lens_N: torch.Tensor,
    walked: Walked,
) -> None:
    """Write what the tokens of each tree (int64) have in common with those chosen at its rows."""
    num_trees, places = trees.parents_NT.shape
    _tree_walk[(num_trees,)](
        *trees,
        tokens_NT,
        chosen_R,
        geometry.ancestors_R,
        geometry.depths_R,
        committed_lens_N,
        *walked,
        places,
        triton.next_power_of_2(places),
        num_warps=4,
    )
