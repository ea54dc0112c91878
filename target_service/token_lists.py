"""The tokens whose logits a session changes, as kernels for GPUs read them: one list a tree.

Legend: E entries, 4 numbers of each (`kernels/gpu/tree_shaping.py`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kernels.gpu.tree_shaping import SEEN, SUPPRESSED
from protos.messages import MAX_TOKEN_ENTRIES, MAX_TREE_NODES, SamplingParams
from target_service.session import Rows, Session

Entries = npt.NDArray[np.int32]

MOST_EXTRA_ENTRIES = 2 * MAX_TOKEN_ENTRIES
"""Entries of a list that are not tokens of the text: logit_bias, and suppressed tokens."""


def early_depth(session: Session) -> int:
    """Return how deep a node must lie for stop tokens not to be suppressed.

    No node is as deep as a tree has nodes: what is more is told as that, which 32 bits hold.
    """
    left = session.sampling.min_new_tokens - session.num_new_tokens
    return min(max(0, left), MAX_TREE_NODES)


def entries_of(rows: Rows) -> Entries:
    """Return what shapes the logits of a tree, [E, 4]; nothing if nothing does."""
    session = rows.session
    sampling = session.sampling
    suppressed = sampling.suppressed_token_ids if early_depth(session) else ()
    past = session.tokens if sampling.penalizes else []
    drafts = rows.tree[0][1:] if sampling.penalizes else ()
    tokens = np.unique(np.array([*past, *drafts, *sampling.logit_bias, *suppressed], np.int32))
    entries_E4 = np.zeros((len(tokens), 4), np.int32)
    entries_E4[:, 0] = tokens
    _count(entries_E4, past, session.prompt_len)
    entries_E4[np.searchsorted(tokens, suppressed), 2] |= SUPPRESSED
    _add_bias(entries_E4, sampling)
    return entries_E4


def _count(entries_E4: Entries, past: list[int], prompt_len: int) -> None:
    at = np.searchsorted(entries_E4[:, 0], past)
    entries_E4[at, 2] = SEEN
    np.add.at(entries_E4[:, 1], at[prompt_len:], 1)


def _add_bias(entries_E4: Entries, sampling: SamplingParams) -> None:
    at = np.searchsorted(entries_E4[:, 0], list(sampling.logit_bias))
    entries_E4[at, 3] = np.array(list(sampling.logit_bias.values()), np.float32).view(np.int32)
