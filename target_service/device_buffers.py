"""What the host writes for a step on a GPU and what it reads of it: one copy each way.

Pieces of all types lie side by side in one memory of bytes, on the host and on the device. Each
bucket lays its own pieces over the first bytes, so that few of them travel for a small step; what
varies in length comes last, and only as much of it travels as there is.

Legend: R rows, M nodes of all trees, N sessions (N1 = N + 1), T places for the nodes of one tree, X
pages of a session, E entries of lists, L tapped layers, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from kernels.gpu.packed_memory import Piece, Pieces
from protos.messages import MAX_TREE_NODES
from target_service.buckets import Bucket

_I32, _I64, _F32, _BF16 = torch.int32, torch.int64, torch.float32, torch.bfloat16


class StepInputs(NamedTuple):
    """A step as the host describes it. Without a tree a session's `sizes_N` is 0."""

    tokens_R: torch.Tensor
    session_R: torch.Tensor
    positions_R: torch.Tensor
    """Those of trees are found on the device, as their ancestors are."""
    ancestors_R: torch.Tensor
    kept_rows_R: torch.Tensor
    """Rows whose taps are read; those of accepted paths are found on the device."""
    node_rows_M: torch.Tensor
    trees_M: torch.Tensor
    lengths_M: torch.Tensor
    temperatures_M: torch.Tensor
    top_ks_M: torch.Tensor
    top_ps_M: torch.Tensor
    log_min_ps_M: torch.Tensor
    seeds_M: torch.Tensor
    first_row_N1: torch.Tensor
    prefix_len_N: torch.Tensor
    """Where the session's rows begin."""
    root_slot_N: torch.Tensor
    """Where its tree does, or what follows its rows."""
    pages_NX: torch.Tensor
    parents_NT: torch.Tensor
    tree_tokens_NT: torch.Tensor
    sizes_N: torch.Tensor
    root_rows_N: torch.Tensor
    first_nodes_N: torch.Tensor
    committed_lens_N: torch.Tensor
    path_places_N: torch.Tensor
    first_entries_N: torch.Tensor
    early_depths_N: torch.Tensor
    presences_N: torch.Tensor
    frequencies_N: torch.Tensor
    repetitions_N: torch.Tensor
    entries_E4: torch.Tensor


class StepOutputs(NamedTuple):
    """What a step found out. What a place of taps without an accepted row holds is nobody's."""

    tokens_M: torch.Tensor
    logprobs_M: torch.Tensor
    accepted_N: torch.Tensor
    paths_NT: torch.Tensor
    taps_RLH: torch.Tensor


@dataclass(frozen=True)
class StepLimits:
    """What the largest step holds, and the model whose step it is."""

    rows: int
    sessions: int
    pages: int
    """Of one session."""
    entries: int
    """Of the lists of all sessions."""
    tap_layers: int
    hidden: int


def input_shapes(bucket: Bucket, limits: StepLimits) -> Pieces:
    """Return the types and shapes of a bucket's `StepInputs`."""
    rows, nodes, sessions = ((count,) for count in bucket)
    places = (bucket.sessions, MAX_TREE_NODES)
    of_rows = {"tokens_R": _I32, "session_R": _I32, "positions_R": _I32}
    of_rows |= {"ancestors_R": _I64, "kept_rows_R": _I32}
    of_nodes = {"node_rows_M": _I32, "trees_M": _I32, "lengths_M": _I32, "temperatures_M": _F32}
    of_nodes |= {"top_ks_M": _I32, "top_ps_M": _F32, "log_min_ps_M": _F32, "seeds_M": _I64}
    of_sessions = dict.fromkeys(("prefix_len_N", "root_slot_N", "sizes_N", "root_rows_N"), _I32)
    of_sessions |= {"first_nodes_N": _I32, "committed_lens_N": _I64, "path_places_N": _I32}
    of_sessions |= {"first_entries_N": _I32, "early_depths_N": _I32}
    of_sessions |= dict.fromkeys(("presences_N", "frequencies_N", "repetitions_N"), _F32)
    return {
        **{name: Piece(dtype, rows) for name, dtype in of_rows.items()},
        **{name: Piece(dtype, nodes) for name, dtype in of_nodes.items()},
        **{name: Piece(dtype, sessions) for name, dtype in of_sessions.items()},
        "first_row_N1": Piece(_I32, (bucket.sessions + 1,)),
        "pages_NX": Piece(_I32, (bucket.sessions, limits.pages)),
        "parents_NT": Piece(_I32, places),
        "tree_tokens_NT": Piece(_I64, places),
        "entries_E4": Piece(_I32, (limits.entries, 4)),
    }


def output_shapes(bucket: Bucket, limits: StepLimits) -> Pieces:
    """Return the types and shapes of a bucket's `StepOutputs`."""
    return {
        "tokens_M": Piece(_I64, (bucket.nodes,)),
        "logprobs_M": Piece(_F32, (bucket.nodes,)),
        "accepted_N": Piece(_I32, (bucket.sessions,)),
        "paths_NT": Piece(_I32, (bucket.sessions, MAX_TREE_NODES)),
        "taps_RLH": Piece(_BF16, (bucket.rows, limits.tap_layers, limits.hidden)),
    }
