"""Memory of the steps of a drafter: what sessions keep, and what a step leaves behind on its way.

Steps run one after the other, so the large buffers are one set for all buckets, and each takes the
rows it needs.

Legend: R rows, H hidden, X tapped width, N drafter's vocabulary, S trees, W places of a frontier, P
pages, T places of a tree.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from draft_service.drafters.eagle3_gpu.weights import GpuWeights
from draft_service.graphs import MOST_ROWS, TREE_SLOTS, Bucket
from kernels.gpu.attention_shape import AttentionPlan, AttentionShape, Tiling, new_plan
from kernels.gpu.candidates import Candidates, CandidateScratch
from kernels.gpu.decoder import LayerBuffers, new_layer_buffers
from kernels.gpu.frontier import Frontier, Nodes, num_nodes
from kernels.gpu.frontier_rows import FrontierRows
from kernels.gpu.packed_memory import Piece
from kernels.gpu.pages import Pages, new_pages
from kernels.gpu.vocabulary import BLOCK_LEN
from kernels.kv_pages import num_pages_for
from protos.messages import MAX_TREE_NODES


class Cache(NamedTuple):
    """What is kept of all sessions: their rows, and the last hidden state of each."""

    pages: Pages
    states_PH: torch.Tensor

    @classmethod
    def of(cls, weights: GpuWeights, num_tokens: int) -> Cache:
        """Return a cache for so many tokens of all sessions together."""
        config, count = weights.config, num_pages_for(num_tokens)
        pages = new_pages(count, 1, config.num_kv_heads, config.head_dim, weights.device)
        states_PH = torch.zeros(
            count, config.hidden_size, dtype=torch.bfloat16, device=weights.device
        )
        return cls(pages, states_PH)


class Workspace(NamedTuple):
    """What rows of a step, or of a level, are worked on in."""

    taps_RX: torch.Tensor
    h_RH: torch.Tensor
    """Of one level, and `other_h_RH` of the next."""
    other_h_RH: torch.Tensor
    last_RH: torch.Tensor
    pair_R2H: torch.Tensor
    layer: LayerBuffers
    logits_RN: torch.Tensor
    scratch: CandidateScratch

    @classmethod
    def of(cls, weights: GpuWeights, rows: int = MOST_ROWS) -> Workspace:
        config, device = weights.config, weights.device
        known = len(weights.head.weight_NK)
        states = torch.zeros(0, dtype=torch.bfloat16, device=device)
        floats = torch.zeros(0, dtype=torch.float32, device=device)
        blocks = triton.cdiv(known, BLOCK_LEN)
        return cls(
            taps_RX=states.new_zeros(rows, config.tapped_width),
            h_RH=states.new_zeros(rows, config.hidden_size),
            other_h_RH=states.new_zeros(rows, config.hidden_size),
            last_RH=states.new_zeros(rows, config.hidden_size),
            pair_R2H=states.new_zeros(rows, 2 * config.hidden_size),
            layer=new_layer_buffers(weights.stack, rows, device, (weights.fc, weights.head)),
            logits_RN=floats.new_zeros(rows, known),
            scratch=CandidateScratch(
                scores_RN=floats.new_zeros(rows, known),
                peaks_RB=floats.new_zeros(rows, blocks),
                sums_R3B=floats.new_zeros(rows, 3, blocks),
                kept_RN=floats.new_zeros(rows, known),
                limits_R=floats.new_zeros(rows),
                nothing_R=torch.zeros(rows, dtype=torch.int32, device=device),
            ),
        )

    def rows(self, count: int) -> Workspace:
        """Return the buffers of the first rows."""
        return Workspace(
            self.taps_RX[:count],
            self.h_RH[:count],
            self.other_h_RH[:count],
            self.last_RH[:count],
            self.pair_R2H[:count],
            self.layer.rows(count),
            self.logits_RN[:count],
            CandidateScratch(*(buffer[:count] for buffer in self.scratch)),
        )


class TreeBuffers(NamedTuple):
    """Nodes and frontiers of the trees of a bucket: frontiers take turns."""

    nodes: Nodes
    frontiers: tuple[Frontier, Frontier]
    rows: FrontierRows
    session_R: torch.Tensor


def new_candidates(rows: int, count: int, device: torch.device) -> Candidates:
    """Return buffers for so many candidates of each row."""
    dtypes = torch.int64, torch.float32, torch.float32
    return Candidates(*(torch.zeros(rows, count, dtype=dtype, device=device) for dtype in dtypes))


def new_tree_buffers(bucket: Bucket, device: torch.device) -> TreeBuffers:
    """Return buffers for the trees of a bucket."""
    trees, width = bucket.sessions, bucket.width

    def zeros(shape: tuple[int, ...], *dtypes: torch.dtype) -> list[torch.Tensor]:
        return [torch.zeros(shape, dtype=dtype, device=device) for dtype in dtypes]

    long, integer, double = torch.int64, torch.int32, torch.float64
    places, grown = (trees, width), (trees, num_nodes(width, max(bucket.depth, 1)))
    frontier = long, integer, double, long, long
    return TreeBuffers(
        Nodes(*zeros(grown, long, integer, double, torch.float32)),
        (Frontier(*zeros(places, *frontier)), Frontier(*zeros(places, *frontier))),
        FrontierRows(*zeros((trees * width,), integer, integer, long, long, long)),
        torch.arange(trees * width, dtype=torch.int32, device=device) // width,
    )


def tree_pieces(bucket: Bucket) -> list[Piece]:
    """Return what `DraftTrees` of a bucket are: the results of a step."""
    most = 1 + num_nodes(bucket.width, max(bucket.depth, 1))
    places = bucket.sessions, min(most, MAX_TREE_NODES)
    dtypes = torch.int64, torch.int32, torch.float32
    return [*(Piece(dtype, places) for dtype in dtypes), Piece(torch.int32, (bucket.sessions,))]


def pages_of_session(cache: Cache, max_context_len: int) -> int:
    """Return how many pages a session can have, its guesses included."""
    return min(num_pages_for(max_context_len + TREE_SLOTS), cache.pages.num_pages)


def attention_plan(
    weights: GpuWeights, tiling: Tiling, sessions: int, pages: int, rows: int
) -> AttentionPlan:
    """Return the buffers of attention for so many rows and sessions."""
    stack = weights.stack
    shape = AttentionShape(
        tiling,
        stack.heads,
        stack.kv_heads,
        stack.head_dim,
        stack.head_dim,
        layers=1,
        sessions=sessions,
        pages=pages,
    )
    # Enough that a few long sessions can be divided among all programs.
    items = shape.most_tiles(rows) + shape.enough_tiles
    return new_plan(shape, rows, items, weights.device)
