"""Attention of training-time test: every row guesses as far ahead as it will when it serves.

At step s row i is the s-th guess of a chain that began behind row i - s. It sees what it will see
when it serves: rows up to i - s, computed from real taps, and the chain's own guesses at rows
i - s + 1 to i, of which the r-th was computed at step r. So step 0 is causal attention, and every
step adds one key a row to it.

Legend: B samples, A query heads, C key-value heads, G query heads of each, L rows, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch


class Keys(NamedTuple):
    """Keys and values of all rows at one step, [B, C, L, D] each."""

    k_BCLD: torch.Tensor
    v_BCLD: torch.Tensor


def unrolled_attention(q_BALD: torch.Tensor, steps: Sequence[Keys]) -> torch.Tensor:
    """Attend at the last of `steps`, whose queries these are. Returns [B, A, L, D].

    Rows before the last step's number have no such chain: they see their own key only.
    """
    real, guessed = steps[0], steps[1:]
    step, heads = len(guessed), real.k_BCLD.shape[1]
    q_BCGLD = q_BALD.unflatten(1, (heads, -1)) / math.sqrt(q_BALD.shape[-1])
    scores = torch.matmul(q_BCGLD, real.k_BCLD[:, :, None].transpose(-1, -2))
    scores = scores.float().masked_fill(_unseen(scores.shape[-1], step, scores.device), -math.inf)
    chain = [
        _chain_scores(q_BCGLD, keys.k_BCLD, step - number)
        for number, keys in enumerate(guessed, start=1)
    ]
    weights = torch.cat([scores, *chain], dim=-1).softmax(-1).to(q_BALD.dtype)
    length = scores.shape[-1]
    attended = torch.matmul(weights[..., :length], real.v_BCLD[:, :, None])
    for number, keys in enumerate(guessed, start=1):
        values_BC1LD = _moved(keys.v_BCLD, step - number)[:, :, None]
        attended = attended + weights[..., length + number - 1, None] * values_BC1LD
    return attended.flatten(1, 2)


def _unseen(length: int, step: int, device: torch.device) -> torch.Tensor:
    """Return which real rows a row does not see at a step, [L, L] bool."""
    rows = torch.arange(length, device=device)
    return rows[None, :] > rows[:, None] - step


def _chain_scores(q_BCGLD: torch.Tensor, k_BCLD: torch.Tensor, distance: int) -> torch.Tensor:
    """Score each row's guess so many rows before it, [B, C, G, L, 1]."""
    moved_BC1LD = _moved(k_BCLD, distance)[:, :, None]
    scores = (q_BCGLD.float() * moved_BC1LD.float()).sum(-1, keepdim=True)
    if distance:
        scores = scores.clone()
        scores[..., :distance, :] = -math.inf
    return scores


def _moved(x_BCLD: torch.Tensor, distance: int) -> torch.Tensor:
    """Return the rows moved on by `distance`; zeros before them."""
    if not distance:
        return x_BCLD
    return torch.nn.functional.pad(x_BCLD[:, :, :-distance], (0, 0, distance, 0))
