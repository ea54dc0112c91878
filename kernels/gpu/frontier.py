"""Trees of many sessions grow by a level: `TreeGrowth` of the draft service, as EAGLE-2.

A node's score is its parent's and its own, in float64, so that sums along paths round as they do in
Python. The children of a frontier are written behind each other, parents in the frontier's order;
the best of them are the next frontier, of equals the first. Which nodes are kept is decided once,
in the end (kernels/gpu/draft_tree.py). (Li et al., "EAGLE-2", arXiv 2406.16858.)

A tree may be narrower or shallower than its bucket; what it has no place for is no node, and has
the score -inf.

Legend: S trees, W places of a frontier, P places of the frontier before, 1 or W; M nodes of a tree:
W children of the root, then W x W a level.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl

from kernels.gpu.candidates import Candidates


class Nodes(NamedTuple):
    """All nodes that were grown so far, level after level."""

    tokens_SM: torch.Tensor
    """int64."""
    parents_SM: torch.Tensor
    """int32: the place of the parent among them; -1 for a child of the root."""
    scores_SM: torch.Tensor
    """float64; -inf where there is no node."""
    logprobs_SM: torch.Tensor
    """float32."""


class Plans(NamedTuple):
    """What each tree grows to, int32."""

    widths_S: torch.Tensor
    """Children of a node, and nodes of a frontier; at most W."""
    steps_S: torch.Tensor
    """Levels."""


class Frontier(NamedTuple):
    """The nodes that are run next, best first. Places without a node run on a harmless row."""

    tokens_SW: torch.Tensor
    """int64; 0 without a node."""
    nodes_SW: torch.Tensor
    """int32: the place among all nodes; -1 without one."""
    scores_SW: torch.Tensor
    """float64."""
    sources_SW: torch.Tensor
    """int64: the row of the level before that was the parent's."""
    ancestors_SW: torch.Tensor
    """int64: bit (depth - 1) W + place stands for a row of the tree, among them its own."""


def num_nodes(width: int, depth: int) -> int:
    """Return how many places a tree of so many levels needs."""
    return width + (depth - 1) * width**2


@triton.jit
@no_type_check
def _child_scores(
    candidate_scores,
    frontier_scores,
    width,
    items,
    PLACES: tl.constexpr,
    WIDTH: tl.constexpr,
    ROOT: tl.constexpr,
):
    """The scores of children, numbered parent after parent; -inf for what is no node."""
    there = (items < PLACES * WIDTH) & (items % WIDTH < width)
    own = tl.load(candidate_scores + items, mask=there, other=-float("inf")).to(tl.float64)
    if ROOT:
        scores = own
    else:
        parents = tl.load(frontier_scores + items // WIDTH, mask=there, other=-float("inf"))
        scores = parents + own
    return tl.where(scores == scores, scores, -float("inf"))


@triton.jit
@no_type_check
def _children_of_places(
    candidate_scores,
    frontier_scores,
    width,
    scores,
    PLACES: tl.constexpr,
    WIDTH: tl.constexpr,
    ROOT: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
):
    """Which child takes each place of the next frontier, [WIDTH padded]; -1 if none does."""
    items = tl.arange(0, scores.shape[0])
    ranks = tl.zeros(scores.shape, tl.int32)
    for first in range(0, PLACES * WIDTH, 8):
        others = first + tl.arange(0, 8)
        of = _child_scores(candidate_scores, frontier_scores, width, others, PLACES, WIDTH, ROOT)
        earlier = (of[:, None] == scores[None, :]) & (others[:, None] < items[None, :])
        ranks += tl.sum(((of[:, None] > scores[None, :]) | earlier).to(tl.int32), 0)
    ranks = tl.where((scores > -float("inf")) & (ranks < width), ranks, -1)
    places = tl.arange(0, PADDED_WIDTH)
    taken = ranks[None, :] == places[:, None]
    return tl.sum(tl.where(taken, items[None, :] + 1, 0), 1) - 1


@triton.jit
@no_type_check
def _write_nodes(
    out,
    parents,
    scores,
    candidates,
    nodes,
    items,
    PLACES: tl.constexpr,
    WIDTH: tl.constexpr,
    ROOT: tl.constexpr,
):
    """Write a level: the children of a frontier, one parent's after the other's."""
    tokens, logprobs = candidates
    tokens_SM, parents_SM, scores_SM, logprobs_SM = nodes
    there, of = items < PLACES * WIDTH, tl.full(items.shape, -1, tl.int32)
    if not ROOT:
        of = tl.load(parents + items // WIDTH, mask=there, other=-1)
    tl.store(tokens_SM + out, tl.load(tokens + items, mask=there), mask=there)
    tl.store(parents_SM + out, of, mask=there)
    tl.store(scores_SM + out, scores, mask=there)
    tl.store(logprobs_SM + out, tl.load(logprobs + items, mask=there), mask=there)


@triton.jit(do_not_specialize=["depth"])
@no_type_check
def _grow(
    candidate_tokens,
    candidate_scores,
    candidate_logprobs,
    widths_S,
    steps_S,
    tokens_SM,
    parents_SM,
    scores_SM,
    logprobs_SM,
    before_nodes_SP,
    before_scores_SP,
    before_ancestors_SP,
    next_tokens_SW,
    next_nodes_SW,
    next_scores_SW,
    next_sources_SW,
    next_ancestors_SW,
    depth,
    NODES: tl.constexpr,
    PLACES: tl.constexpr,
    WIDTH: tl.constexpr,
    ROOT: tl.constexpr,
    PADDED: tl.constexpr,
    PADDED_WIDTH: tl.constexpr,
):
    tree, items = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    mine, before = tree * PLACES * WIDTH, tree * PLACES
    first = (depth > 1) * (WIDTH + (depth - 2) * WIDTH * WIDTH)
    steps, width = tl.load(steps_S + tree), tl.load(widths_S + tree)
    of, above = candidate_scores + mine, before_scores_SP + before
    grown, wanted = tl.where(depth <= steps, width, 0), tl.where(depth < steps, width, 0)
    scores = _child_scores(of, above, grown, items, PLACES, WIDTH, ROOT)
    candidates = candidate_tokens + mine, candidate_logprobs + mine
    nodes = tokens_SM, parents_SM, scores_SM, logprobs_SM
    parents, out = before_nodes_SP + before, tree * NODES + first + items
    _write_nodes(out, parents, scores, candidates, nodes, items, PLACES, WIDTH, ROOT)
    chosen = _children_of_places(of, above, wanted, scores, PLACES, WIDTH, ROOT, PADDED_WIDTH)
    places, is_node, child = tl.arange(0, chosen.shape[0]), chosen >= 0, tl.maximum(chosen, 0)
    there, rows = places < WIDTH, tree * WIDTH + places
    token = tl.load(candidate_tokens + mine + child, mask=is_node, other=0)
    score = _child_scores(of, above, width, child, PLACES, WIDTH, ROOT)
    bits = tl.full(chosen.shape, 1, tl.int64) << ((depth - 1) * WIDTH + places).to(tl.int64)
    if not ROOT:
        bits |= tl.load(before_ancestors_SP + before + child // WIDTH, mask=is_node, other=0)
    tl.store(next_tokens_SW + rows, token, mask=there)
    tl.store(next_nodes_SW + rows, tl.where(is_node, first + child, -1), mask=there)
    tl.store(next_scores_SW + rows, tl.where(is_node, score, -float("inf")), mask=there)
    tl.store(next_sources_SW + rows, before + child // WIDTH, mask=there)
    tl.store(next_ancestors_SW + rows, bits, mask=there)


def grow(
    candidates: Candidates,
    plans: Plans,
    nodes: Nodes,
    before: Frontier | None,
    after: Frontier,
    depth: int,
) -> None:
    """Write the nodes of a level, of depth 1 or more, and the frontier that is run for the next.

    The frontier before is that of the level above; at depth 1 it is the root alone, None.
    """
    num_trees, width = after.nodes_SW.shape
    assert (before is None) == (depth == 1), "only the root's children have no frontier before"
    places = 1 if before is None else width
    above = before or after
    _grow[(num_trees,)](
        *candidates,
        *plans,
        *nodes,
        above.nodes_SW,
        above.scores_SW,
        above.ancestors_SW,
        *after,
        depth,
        nodes.tokens_SM.shape[1],
        places,
        width,
        before is None,
        triton.next_power_of_2(places * width),
        triton.next_power_of_2(width),
        num_warps=4,
    )
