"""The best nodes of all that were grown: the tree that is drafted, re-ranked as in EAGLE-2.

No node is better than its parent, and of equals the earlier node comes first; so the best nodes are
a tree, parents come before their children, and any first nodes are the best tree of their number.

Legend: S trees, M nodes that were grown, T places of a tree.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl

from kernels.gpu.frontier import Nodes


class DraftTrees(NamedTuple):
    """Node 0 is the root; behind a tree's nodes stand zeros."""

    tokens_ST: torch.Tensor
    """int64."""
    parents_ST: torch.Tensor
    """int32; -1 for the root."""
    logprobs_ST: torch.Tensor
    """float32."""
    sizes_S: torch.Tensor
    """int32: how many nodes there are, with the root."""


@triton.jit
@no_type_check
def _ranks(scores_M, scores, NODES: tl.constexpr, TILE: tl.constexpr):
    """How many nodes are better, or as good and earlier."""
    nodes = tl.arange(0, scores.shape[0])
    ranks = tl.zeros(scores.shape, tl.int32)
    for first in range(0, NODES, TILE):
        others = first + tl.arange(0, TILE)
        of = tl.load(scores_M + others, mask=others < NODES, other=-float("inf"))
        earlier = (of[:, None] == scores[None, :]) & (others[:, None] < nodes[None, :])
        ranks += tl.sum(((of[:, None] > scores[None, :]) | earlier).to(tl.int32), 0)
    return ranks


@triton.jit
@no_type_check
def _draft_trees(
    tokens_SM,
    parents_SM,
    scores_SM,
    logprobs_SM,
    draft_tokens_S,
    root_tokens_S,
    tokens_ST,
    parents_ST,
    logprobs_ST,
    sizes_S,
    NODES: tl.constexpr,
    PADDED: tl.constexpr,
    PLACES: tl.constexpr,
    PADDED_PLACES: tl.constexpr,
    TILE: tl.constexpr,
):
    tree, nodes = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    there, grown = nodes < NODES, tree * NODES + nodes
    scores = tl.load(scores_SM + grown, mask=there, other=-float("inf"))
    places = _ranks(scores_SM + tree * NODES, scores, NODES, TILE) + 1
    most = tl.minimum(tl.load(draft_tokens_S + tree), PLACES)
    kept = (scores > -float("inf")) & (places < most)
    parents = tl.load(parents_SM + grown, mask=kept, other=-1)
    parent_places = tl.where(parents < 0, 0, tl.gather(places, tl.maximum(parents, 0), 0))
    out, size = tree * PLACES + places, tl.sum(kept.to(tl.int32), 0) + 1
    tl.store(tokens_ST + out, tl.load(tokens_SM + grown, mask=kept), mask=kept)
    tl.store(parents_ST + out, parent_places, mask=kept)
    tl.store(logprobs_ST + out, tl.load(logprobs_SM + grown, mask=kept), mask=kept)
    tl.store(sizes_S + tree, size)
    others = tl.arange(0, PADDED_PLACES)
    is_root, rest = others == 0, (others < PLACES) & ((others == 0) | (others >= size))
    root, rest_out = tl.load(root_tokens_S + tree), tree * PLACES + others
    tl.store(tokens_ST + rest_out, tl.where(is_root, root, 0), mask=rest)
    tl.store(parents_ST + rest_out, tl.where(is_root, -1, 0), mask=rest)
    tl.store(logprobs_ST + rest_out, tl.zeros([PADDED_PLACES], tl.float32), mask=rest)


def draft_trees(
    nodes: Nodes, draft_tokens_S: torch.Tensor, root_tokens_S: torch.Tensor, trees: DraftTrees
) -> None:
    """Write trees of so many nodes (int32, with the root), or as many as there are."""
    num_trees, num_nodes = nodes.tokens_SM.shape
    places = trees.tokens_ST.shape[1]
    _draft_trees[(num_trees,)](
        *nodes,
        draft_tokens_S,
        root_tokens_S,
        *trees,
        num_nodes,
        triton.next_power_of_2(num_nodes),
        places,
        triton.next_power_of_2(places),
        8,
        num_warps=8,
    )
