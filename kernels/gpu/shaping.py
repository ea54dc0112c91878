"""Logits shaped by what a row's own text holds: bias and penalties, before filters see them.

    x = logit + bias
    x = x / repetition if x > 0 else x * repetition                    of tokens that were seen
    x = x - frequency * count - presence * (count > 0)                 with the answer's counts

A row names the tokens it changes in a list, each once. Only rows with a list are copied; where none
has one, both launches end at once. (`penalized_logits` of kernels/sampling.py.)

Legend: R rows, V vocabulary, P places of a list.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl

from kernels.gpu.vocabulary import load_logits

_COPIED = 4096
_CHANGED = 256


class Shaping(NamedTuple):
    """What shapes each row. Past its length a list may hold anything."""

    lengths_R: torch.Tensor
    """int32; 0 for a row that nothing shapes."""
    tokens_RP: torch.Tensor
    """int32, all different; tokens outside the vocabulary, or this shard of it, are passed over."""
    counts_RP: torch.Tensor
    """int32: how often the answer holds the token."""
    seen_RP: torch.Tensor
    """bool: whether prompt or answer do."""
    biases_RP: torch.Tensor
    """float32; -inf suppresses a token."""
    presences_R: torch.Tensor
    frequencies_R: torch.Tensor
    repetitions_R: torch.Tensor


class Shaped(NamedTuple):
    """Shaped logits, float32, of those rows whose length is not 0."""

    logits_RV: torch.Tensor
    lengths_R: torch.Tensor


@triton.jit
@no_type_check
def _copy_kernel(
    logits_RV, row_stride, lengths_R, shaped_RV, vocab_size: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    if tl.load(lengths_R + row) > 0:
        tokens = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = tokens < vocab_size
        found = load_logits(logits_RV + row * row_stride, tokens, inside)
        tl.store(shaped_RV + row * vocab_size + tokens, found, mask=inside)


@triton.jit
@no_type_check
def penalized(logits, counts, seen, penalties):
    """Logits of tokens less what presence, frequency and repetition cost."""
    presence, frequency, repetition = penalties
    scaled = tl.where(logits > 0, tl.div_rn(logits, repetition), logits * repetition)
    kept = tl.where(seen, scaled, logits)
    # Rounded after each operation, as the reference is: not fused.
    less = tl.where(counts > 0, presence, 0.0)
    return kept - frequency * counts.to(tl.float32) - less


@triton.jit
@no_type_check
def _shape_kernel(
    logits_RV,
    row_stride,
    first_token,
    lengths_R,
    tokens_RP,
    counts_RP,
    seen_RP,
    biases_RP,
    presences_R,
    frequencies_R,
    repetitions_R,
    shaped_RV,
    vocab_size: tl.constexpr,
    PLACES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    first, length = tl.program_id(1) * BLOCK, tl.load(lengths_R + row)
    if first < length:
        places = first + tl.arange(0, BLOCK)
        listed, entries = places < length, row * PLACES + places
        tokens = tl.load(tokens_RP + entries, mask=listed, other=-1) - first_token
        inside = listed & (tokens >= 0) & (tokens < vocab_size)
        logits = load_logits(logits_RV + row * row_stride, tokens, inside)
        logits += tl.load(biases_RP + entries, mask=inside, other=0.0)
        counts = tl.load(counts_RP + entries, mask=inside, other=0)
        seen = tl.load(seen_RP + entries, mask=inside, other=0) != 0
        presence, frequency = tl.load(presences_R + row), tl.load(frequencies_R + row)
        penalties = presence, frequency, tl.load(repetitions_R + row)
        shaped = penalized(logits, counts, seen, penalties)
        tl.store(shaped_RV + row * vocab_size + tokens, shaped, mask=inside)


def copy_listed(logits_RV: torch.Tensor, lengths_R: torch.Tensor, shaped_RV: torch.Tensor) -> None:
    """Copy the rows that have a list."""
    rows, vocab_size = logits_RV.shape
    _copy_kernel[(rows, triton.cdiv(vocab_size, _COPIED))](
        logits_RV,
        logits_RV.stride(0),
        lengths_R,
        shaped_RV,
        vocab_size,
        _COPIED,
        num_warps=8,
    )


def shape_logits(
    logits_RV: torch.Tensor, shaping: Shaping, shaped_RV: torch.Tensor, first_token: int = 0
) -> None:
    """Write the float32 logits that rows with a list choose by; `first_token` is the shard's."""
    rows, vocab_size = logits_RV.shape
    places = shaping.tokens_RP.shape[1]
    copy_listed(logits_RV, shaping.lengths_R, shaped_RV)
    _shape_kernel[(rows, triton.cdiv(places, _CHANGED))](
        logits_RV,
        logits_RV.stride(0),
        first_token,
        *shaping,
        shaped_RV,
        vocab_size,
        places,
        _CHANGED,
        num_warps=4,
    )
