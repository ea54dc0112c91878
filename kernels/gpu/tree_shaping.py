"""Logits of the nodes of many trees, shaped by their sessions and their own paths.

The formulas of `shaping`. A session lists the tokens that it changes once, for all nodes of its
tree; what a node's path adds to their counts is counted here. So a list is as long as a text, not
as long as a text times a tree.

Legend: M nodes of all trees, V vocabulary, N trees, T places for the nodes of one tree, E entries
of all lists, 4 numbers of each.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl

from kernels.gpu.shaping import Shaped, copy_listed, penalized
from kernels.gpu.tree_geometry import Geometry
from kernels.gpu.vocabulary import load_logits

SEEN = 1
"""Prompt or answer hold the token."""
SUPPRESSED = 2
"""The token must not be chosen at nodes that come too early for it."""
_SEEN, _SUPPRESSED = tl.constexpr(SEEN), tl.constexpr(SUPPRESSED)
_BLOCK = 64
_PROGRAMS = 16
"""Of one node: they share its list, however long it is."""


class TreeLists(NamedTuple):
    """What shapes the nodes of each tree."""

    trees_M: torch.Tensor
    """int32: the tree of each node."""
    lengths_M: torch.Tensor
    """int32: entries of that tree's list; 0 where nothing shapes logits."""
    first_entries_N: torch.Tensor
    """int32: where each tree's list begins."""
    early_depths_N: torch.Tensor
    """int32: nodes less deep than this come too early for suppressed tokens."""
    presences_N: torch.Tensor
    frequencies_N: torch.Tensor
    repetitions_N: torch.Tensor
    entries_E4: torch.Tensor
    """int32: the token, all of a list different; how often the answer holds it; SEEN, SUPPRESSED or
    both; the bits of its bias in float32. With penalties a list has all tokens of its tree."""


def shape_trees(
    logits_MV: torch.Tensor,
    tokens_NT: torch.Tensor,
    geometry: Geometry,
    lists: TreeLists,
    shaped_MV: torch.Tensor,
) -> Shaped:
    """Write the float32 logits that nodes with a list choose by. Roots are part of the answer."""
    nodes, vocab_size = logits_MV.shape
    places = tokens_NT.shape[1]
    copy_listed(logits_MV, lists.lengths_M, shaped_MV)
    _shape_trees[(nodes, _PROGRAMS)](
        logits_MV,
        logits_MV.stride(0),
        tokens_NT,
        geometry.ancestors_R,
        geometry.depths_R,
        *lists,
        shaped_MV,
        vocab_size,
        places,
        triton.next_power_of_2(places),
        _BLOCK,
        num_warps=4,
    )
    return Shaped(shaped_MV, lists.lengths_M)


@triton.jit
@no_type_check
def _shape_trees(
    logits_MV,
    row_stride,
    tokens_NT,
    ancestors_M,
    depths_M,
    trees_M,
    lengths_M,
    first_entries_N,
    early_depths_N,
    presences_N,
    frequencies_N,
    repetitions_N,
    entries_E4,
    shaped_MV,
    vocab_size: tl.constexpr,
    PLACES: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    node = tl.program_id(0).to(tl.int64)
    length, tree = tl.load(lengths_M + node), tl.load(trees_M + node).to(tl.int64)
    if length > 0:
        path = _path_tokens(tokens_NT + tree * PLACES, tl.load(ancestors_M + node), PADDED)
        is_early = tl.load(depths_M + node) < tl.load(early_depths_N + tree)
        presence, frequency = tl.load(presences_N + tree), tl.load(frequencies_N + tree)
        penalties = presence, frequency, tl.load(repetitions_N + tree)
        list_E4 = entries_E4 + tl.load(first_entries_N + tree).to(tl.int64) * 4
        logits, shaped = logits_MV + node * row_stride, shaped_MV + node * vocab_size
        for first in range(tl.program_id(1) * BLOCK, length, tl.num_programs(1) * BLOCK):
            at = first + tl.arange(0, BLOCK)
            listed, entry = at < length, list_E4 + at * 4
            tokens = tl.load(entry, mask=listed, other=0)
            on_path = tl.sum((tokens[:, None] == path[None, :]).to(tl.int32), 1)
            counts = tl.load(entry + 1, mask=listed, other=0) + on_path
            marks = tl.load(entry + 2, mask=listed, other=0)
            bias = tl.load(entry + 3, mask=listed, other=0).to(tl.float32, bitcast=True)
            bias = tl.where(is_early & ((marks & _SUPPRESSED) != 0), -float("inf"), bias)
            seen = ((marks & _SEEN) != 0) | (on_path > 0)
            biased = load_logits(logits, tokens, listed) + bias
            tl.store(shaped + tokens, penalized(biased, counts, seen, penalties), mask=listed)


@triton.jit
@no_type_check
def _path_tokens(tokens_T, ancestors, PADDED: tl.constexpr):
    """The tokens of a node's path below the root, and -1 elsewhere."""
    nodes = tl.arange(0, PADDED)
    below_root = (((ancestors >> nodes.to(tl.int64)) & 1) != 0) & (nodes > 0)
    return tl.load(tokens_T + nodes, mask=below_root, other=-1)
