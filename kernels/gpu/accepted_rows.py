"""What a walk accepted, as those who follow it want it: a path with its root, and the rows of taps.

Legend: N trees, T places for the nodes of one tree, R rows of a step.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl

from kernels.gpu.tree_walk import Walked


class Accepted(NamedTuple):
    """Accepted paths with their roots, and the rows that are kept. All int32."""

    paths_NT: torch.Tensor
    """For `move_accepted`; zeros behind the path."""
    path_lens_N: torch.Tensor
    """0 where there is no tree."""
    kept_rows_R: torch.Tensor
    """Given with what is kept in any case; each path is written to its place."""


def place_accepted(
    walked: Walked, root_rows_N: torch.Tensor, places_N: torch.Tensor, accepted: Accepted
) -> None:
    """Write the accepted paths. `places_N` (int32) are where their rows come to lie among those
    that are kept, and `root_rows_N` (int32) the rows of the roots.
    """
    trees, most_nodes = walked.paths_NT.shape
    _place_accepted[(trees,)](
        walked.paths_NT,
        walked.accepted_N,
        root_rows_N,
        places_N,
        *accepted,
        most_nodes,
        triton.next_power_of_2(most_nodes),
        num_warps=1,
    )


@triton.jit
@no_type_check
def _place_accepted(
    walked_NT,
    accepted_N,
    root_rows_N,
    places_N,
    paths_NT,
    path_lens_N,
    kept_rows_R,
    PLACES: tl.constexpr,
    PADDED: tl.constexpr,
):
    tree, depths = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    count = tl.load(accepted_N + tree)
    is_there = (depths > 0) & (depths <= count)
    path = tl.load(walked_NT + tree * PLACES + depths - 1, mask=is_there, other=0)
    tl.store(paths_NT + tree * PLACES + depths, path, mask=depths < PLACES)
    tl.store(path_lens_N + tree, count + 1)
    kept = kept_rows_R + tl.load(places_N + tree) + depths - 1
    tl.store(kept, tl.load(root_rows_N + tree) + path, mask=is_there)
