"""Attention of training-time test: every row guesses as far ahead as it will when it serves.

At step s row i is the s-th guess of a chain that began behind row i - s. It sees what it will see
when it serves: rows up to i - s, computed from real taps, and the chain's own guesses at rows
i - s + 1 to i, of which the r-th was computed at step r. So step 0 is causal attention, and every
step adds one key a row to it.

Every row scores all real rows, which is one product, and then each guess of its own chain; those
scores are further columns. Scores are as large as the batch is long, squared: so they are written
once, turned into weights in place of autograd's copies, and derived by hand.

Legend: B samples, A query heads, C key-value heads, G query heads of each, L rows, D head size, S
steps, K columns of scores: L real rows and a guess of each step behind the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

_COLUMNS = 16
"""Columns for guesses come in so many: products of many widths are slower than wider ones."""


class Keys(NamedTuple):
    """Keys and values of all rows at one step, [B, C, L, D] each."""

    k_BCLD: torch.Tensor
    v_BCLD: torch.Tensor


def unrolled_attention(q_BALD: torch.Tensor, steps: Sequence[Keys]) -> torch.Tensor:
    """Attend at the last of `steps`, whose queries these are. Returns [B, A, L, D].

    Rows before the last step's number have no such chain: they see their own key only.
    """
    return _Attention.apply(  # type: ignore[no-untyped-call]
        q_BALD, *(tensor for keys in steps for tensor in keys)
    )


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q_BALD: torch.Tensor, *keys_and_values: torch.Tensor) -> torch.Tensor:
        real_k, *guessed_k = keys_and_values[::2]
        real_v, *guessed_v = keys_and_values[1::2]
        q_BCGLD = _grouped(q_BALD, real_k) / math.sqrt(q_BALD.shape[-1])
        scores_BCGLK = _products(q_BCGLD, real_k, guessed_k)
        scores_BCGLK += _unseen(q_BALD.shape[2], len(guessed_k), scores_BCGLK)
        weights_BCGLK = scores_BCGLK.softmax(-1)
        ctx.save_for_backward(q_BCGLD, weights_BCGLK, *keys_and_values)
        return _weighted(weights_BCGLK, real_v, guessed_v).flatten(1, 2)

    @staticmethod
    def backward(ctx: Any, grad_BALD: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q_BCGLD, weights_BCGLK, *keys_and_values = ctx.saved_tensors
        real_k, *guessed_k = keys_and_values[::2]
        real_v, *guessed_v = keys_and_values[1::2]
        grad_BCGLD = _grouped(grad_BALD, real_v)
        wanted_BCGLK = _products(grad_BCGLD, real_v, guessed_v)
        dtype = weights_BCGLK.dtype
        scores = torch._softmax_backward_data(wanted_BCGLK, weights_BCGLK, -1, dtype)
        q_grad = _weighted(scores, real_k, guessed_k).flatten(1, 2) / math.sqrt(q_BCGLD.shape[-1])
        k_grads = _given(scores, q_BCGLD, len(guessed_k))
        v_grads = _given(weights_BCGLK, grad_BCGLD, len(guessed_v))
        return q_grad, *chain.from_iterable(zip(k_grads, v_grads, strict=True))


def _grouped(x_BALD: torch.Tensor, like_BCLD: torch.Tensor) -> torch.Tensor:
    """Return query heads by the key-value head that they share, [B, C, G, L, D]."""
    return x_BALD.unflatten(1, (like_BCLD.shape[1], -1))


def _products(
    x_BCGLD: torch.Tensor, real_BCLD: torch.Tensor, guessed: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Multiply each row with all real rows, and with its chain's own, [B, C, G, L, K]."""
    length = x_BCGLD.shape[3]
    padded_BCKD = F.pad(real_BCLD, (0, 0, 0, _columns(len(guessed))))
    products = x_BCGLD.flatten(2, 3) @ padded_BCKD.transpose(-1, -2)
    products_BCGLK = products.unflatten(2, (-1, length))
    for column, moved_BC1LD in enumerate(_moved(guessed), start=length):
        products_BCGLK[..., column] = (x_BCGLD * moved_BC1LD).sum(-1)
    return products_BCGLK


def _weighted(
    weights_BCGLK: torch.Tensor, real_BCLD: torch.Tensor, guessed: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Sum up what each row sees by its weights, [B, C, G, L, D]."""
    length = weights_BCGLK.shape[3]
    padded_BCKD = F.pad(real_BCLD, (0, 0, 0, _columns(len(guessed))))
    sums_BCGLD = (weights_BCGLK.flatten(2, 3) @ padded_BCKD).unflatten(2, (-1, length))
    for column, moved_BC1LD in enumerate(_moved(guessed), start=length):
        sums_BCGLD += weights_BCGLK[..., column, None] * moved_BC1LD
    return sums_BCGLD


def _given(
    weights_BCGLK: torch.Tensor, x_BCGLD: torch.Tensor, guesses: int
) -> Iterator[torch.Tensor]:
    """Yield what those who see a row give to it: to the real ones, then to each step's guesses."""
    length = x_BCGLD.shape[3]
    sums_BCKD = weights_BCGLK.flatten(2, 3).transpose(-1, -2) @ x_BCGLD.flatten(2, 3)
    yield sums_BCKD[:, :, :length]
    for number in range(guesses):
        given_BCLD = (weights_BCGLK[..., length + number, None] * x_BCGLD).sum(2)
        distance = guesses - 1 - number
        yield F.pad(given_BCLD[:, :, distance:], (0, 0, 0, distance))


def _columns(guesses: int) -> int:
    """Return how many columns are made for so many guesses."""
    return -(-guesses // _COLUMNS) * _COLUMNS


def _unseen(length: int, step: int, like: torch.Tensor) -> torch.Tensor:
    """Return what is added to the scores of a step, [L, K]: -inf where a row does not see."""
    rows_L1 = torch.arange(length, device=like.device)[:, None]
    real_1L = rows_L1.T
    # The guess of step n lies step - n rows before the row; there is none before the first row.
    distances_1S = torch.arange(step - 1, -1, -1, device=like.device)[None]
    seen_LK = torch.cat((real_1L <= rows_L1 - step, distances_1S <= rows_L1), dim=1)
    seen_LK = F.pad(seen_LK, (0, _columns(step) - step))
    return like.new_zeros(()).masked_fill(~seen_LK, -math.inf)


def _moved(guessed: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield each step's guesses beside the rows whose chains they are of, [B, C, 1, L, D].

    The last step's are the rows' own; the others are moved on, with zeros before them.
    """
    for distance, guessed_BCLD in zip(range(len(guessed) - 1, -1, -1), guessed, strict=True):
        kept = guessed_BCLD[:, :, : guessed_BCLD.shape[2] - distance]
        yield F.pad(kept, (0, 0, distance, 0))[:, :, None]
