"""Writes a batch into the inputs of a step.

Legend: see `device_buffers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch

from kernels.noise import seeds_of_rows
from target_service.device_buffers import StepInputs
from target_service.step_shares import Share
from target_service.token_lists import early_depth, entries_of

Numbers = Sequence[int] | Sequence[float] | npt.NDArray[np.generic] | torch.Tensor


def pack(shares: Sequence[Share], inputs: StepInputs) -> int:
    """Describe a step in inputs that are all 0; return how many entries its lists have."""
    _pack_rows(shares, inputs)
    _pack_sessions(shares, inputs)
    _pack_trees(shares, inputs)
    _pack_filters(shares, inputs)
    return _pack_lists(shares, inputs)


def _pack_rows(shares: Sequence[Share], inputs: StepInputs) -> None:
    rows = [share.rows for share in shares]
    _put(inputs.tokens_R, [token for part in rows for token in part.tokens])
    _put(inputs.session_R, _spread(range(len(rows)), [len(part.tokens) for part in rows]))
    _put(inputs.positions_R, [at for part in rows for at in range(part.prefix_len, part.num_slots)])
    _put(inputs.kept_rows_R, [row for share in shares for row in share.kept_rows()])


def _pack_sessions(shares: Sequence[Share], inputs: StepInputs) -> None:
    _put(inputs.first_row_N1, [share.first_row for share in shares])
    inputs.first_row_N1[len(shares) :] = shares[-1].end_row
    _put(inputs.prefix_len_N, [share.rows.prefix_len for share in shares])
    _put(inputs.root_slot_N, [share.root_slot for share in shares])
    for share, pages_X in zip(shares, inputs.pages_NX, strict=False):
        _put(pages_X, share.rows.pages)


def _pack_trees(shares: Sequence[Share], inputs: StepInputs) -> None:
    for number, share in enumerate(shares):
        if share.parents:
            _put(inputs.parents_NT[number], share.parents)
            _put(inputs.tree_tokens_NT[number], share.rows.tree[0])
            inputs.root_rows_N[number] = share.root_row
            inputs.first_nodes_N[number] = share.first_node
            inputs.path_places_N[number] = share.path_place
    _put(inputs.sizes_N, [share.num_nodes for share in shares])
    _put(inputs.committed_lens_N, [share.rows.session.committed_len for share in shares])
    _put(
        inputs.node_rows_M,
        [row for share in shares for row in range(share.root_row, share.end_row)],
    )


def _pack_filters(shares: Sequence[Share], inputs: StepInputs) -> None:
    sampling = [share.rows.session.sampling for share in shares]
    sizes = [share.num_nodes for share in shares]
    log_min_ps_N = torch.tensor([of.min_p for of in sampling]).log().numpy()
    seeds_N = seeds_of_rows([of.seed for of in sampling], torch.device("cpu")).numpy()
    _put(inputs.temperatures_M, _spread([of.temperature for of in sampling], sizes))
    _put(inputs.top_ks_M, _spread([of.top_k for of in sampling], sizes))
    _put(inputs.top_ps_M, _spread([of.top_p for of in sampling], sizes))
    _put(inputs.log_min_ps_M, _spread(log_min_ps_N, sizes))
    _put(inputs.seeds_M, _spread(seeds_N, sizes))
    _put(inputs.presences_N, [of.presence_penalty for of in sampling])
    _put(inputs.frequencies_N, [of.frequency_penalty for of in sampling])
    _put(inputs.repetitions_N, [of.repetition_penalty for of in sampling])


def _pack_lists(shares: Sequence[Share], inputs: StepInputs) -> int:
    lists = [entries_of(share.rows) if share.parents else _NO_ENTRIES for share in shares]
    lengths, sizes = list(map(len, lists)), [share.num_nodes for share in shares]
    _put(inputs.first_entries_N, list(accumulate(lengths, initial=0))[:-1])
    _put(inputs.early_depths_N, [early_depth(share.rows.session) for share in shares])
    _put(inputs.trees_M, _spread(range(len(shares)), sizes))
    _put(inputs.lengths_M, _spread(lengths, sizes))
    _put(inputs.entries_E4, np.concatenate(lists))
    return sum(lengths)


_NO_ENTRIES = np.zeros((0, 4), np.int32)


def _spread(values: Iterable[object] | npt.NDArray[np.generic], counts: Sequence[int]) -> Numbers:
    return np.repeat(np.asarray(values), counts)


def _put(piece: torch.Tensor, values: Numbers) -> None:
    """Write to the beginning of a piece; through numpy, which takes less time for few numbers."""
    piece.numpy()[: len(values)] = values
