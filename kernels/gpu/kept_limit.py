"""What the filters keep of a vocabulary: tokens whose logit / T reaches a limit.

`filtered_logits` of kernels/sampling.py without a sort. A limit is the largest value that enough
reaches: `top_k` tokens, or `top_p` of the mass. It is found digit by digit, in eight passes over
the tokens that may be it; each tallies what reaches 16 values. A mass is an integer, so no tally
depends on an order, and rows that need no limit skip all of it.

Legend: R rows, V vocabulary, B blocks of 1024 tokens.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl

from kernels.gpu.shaping import Shaped
from kernels.gpu.vocabulary import (
    BLOCK_LEN,
    finite,
    is_filtered,
    load_shaped,
    ordered,
    value_of,
)

# e^(logit - largest) in units of 2^-44: the sum of a vocabulary of 2^18 tokens fits into 63 bits.
_UNITS = tl.constexpr(2.0**44)
_BELOW_ONE = tl.constexpr(1 - 2.0**-24)
_BLOCK: tl.constexpr = tl.constexpr(BLOCK_LEN)
_BLOCKS_OF_TILE = 4
_NUM_WARPS = 16


class RowFilters(NamedTuple):
    """How each row chooses: float32, and int32 for top_k. 0 or -1 turns top_k off, 1 top_p."""

    temperatures_R: torch.Tensor
    top_ks_R: torch.Tensor
    top_ps_R: torch.Tensor
    log_min_ps_R: torch.Tensor
    """The float32 logarithm of min_p: -inf turns it off."""


@triton.jit
@no_type_check
def _masses_of(scaled, largest):
    # The largest weighs 1 where it is infinite, too: less itself it would be no number.
    weights = tl.where(scaled == largest, 1.0, tl.exp(scaled - largest))
    return (weights * _UNITS).to(tl.int64)


@triton.jit
@no_type_check
def _tally(kept, count, floor, largest, bounds, BY_MASS: tl.constexpr):
    """How many of `count` values, or what mass of those from the floor on, reach each bound."""
    tallies = tl.zeros(bounds.shape, tl.int64)
    for first in range(0, count, _BLOCK):
        places = first + tl.arange(0, _BLOCK)
        scaled = tl.load(kept + places, mask=places < count, other=-float("inf"))
        if BY_MASS:
            amounts = tl.where(scaled >= floor, _masses_of(scaled, largest), 0)
        else:
            amounts = (places < count).to(tl.int64)
        reached = ordered(scaled)[None, :] >= bounds[:, None]
        tallies += tl.sum(tl.where(reached, amounts[None, :], 0), 1)
    return tallies


@triton.jit
@no_type_check
def _largest_reached(kept, count, floor, largest, need, BY_MASS: tl.constexpr):
    """The largest value that at least `need` reaches."""
    found, shift = tl.full([], 0, tl.uint32), tl.full([], 32, tl.uint32)
    for _ in range(8):
        shift -= 4
        bounds = found + (tl.arange(0, 16).to(tl.uint32) << shift)
        tallies = _tally(kept, count, floor, largest, bounds, BY_MASS)
        digit = tl.sum((tallies >= need).to(tl.int32), 0) - 1
        found += digit.to(tl.uint32) << shift
    return value_of(found)


@triton.jit
@no_type_check
def _mass_from(kept, count, floor, largest):
    """The mass of those values that reach the floor."""
    anything = tl.zeros([16], tl.uint32)
    return tl.max(_tally(kept, count, floor, largest, anything, True), 0)


@triton.jit
@no_type_check
def _top_k_bound(peaks, largest_B, top_k, BLOCKS: tl.constexpr):
    """A logit that the k likeliest tokens reach, as the k likeliest of the blocks' best do."""
    above_B = tl.zeros(largest_B.shape, tl.int32)
    for first in range(0, BLOCKS, 16):
        blocks = first + tl.arange(0, 16)
        others = tl.load(peaks + blocks, mask=blocks < BLOCKS, other=-float("inf"))
        above_B += tl.sum((others[:, None] > largest_B[None, :]).to(tl.int32), 0)
    bound = tl.min(tl.where(above_B < top_k, largest_B, float("inf")), 0)
    return tl.where(top_k <= BLOCKS, bound, -float("inf"))


@triton.jit
@no_type_check
def _gather(
    source,
    peaks,
    kept,
    temperature,
    largest,
    floor,
    bound,
    vocab_size: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write the values from the bound on, side by side; how many, and the mass from the floor on.

    Blocks whose likeliest token lies below the floor are not read.
    """
    logits, shaped, length = source
    count, total = tl.full([], 0, tl.int32), tl.full([], 0, tl.int64)
    for first in range(0, vocab_size, TILE * _BLOCK):
        blocks = first // _BLOCK + tl.arange(0, TILE)
        peak = tl.load(peaks + blocks, mask=blocks * _BLOCK < vocab_size, other=-float("inf"))
        if tl.div_rn(tl.max(peak, 0), temperature) >= floor:
            tokens = first + tl.arange(0, TILE * _BLOCK)
            inside = tokens < vocab_size
            found = load_shaped(logits, shaped, length, tokens, inside)
            scaled = tl.div_rn(found, temperature)
            total += tl.sum(tl.where(scaled >= floor, _masses_of(scaled, largest), 0), 0)
            chosen = (scaled >= bound) & inside
            places = count + tl.cumsum(chosen.to(tl.int32), 0) - 1
            tl.store(kept + places, scaled, mask=chosen)
            count += tl.sum(chosen.to(tl.int32), 0)
    # The tallies read what other threads of this program wrote.
    tl.debug_barrier()
    return count, total


@triton.jit
@no_type_check
def _limit_of(
    source,
    peaks,
    kept,
    filters,
    vocab_size: tl.constexpr,
    BLOCKS: tl.constexpr,
    PADDED: tl.constexpr,
    TILE: tl.constexpr,
):
    """The limit of a row, raised by one filter after the other."""
    temperature, top_k, top_p, log_min_p = filters
    blocks = tl.arange(0, PADDED)
    largest_B = tl.load(peaks + blocks, mask=blocks < BLOCKS, other=-float("inf"))
    peak = tl.div_rn(tl.max(largest_B, 0), temperature)
    largest = finite(peak)
    # Without min_p there is no limit yet: +inf less infinity would be no number.
    limit = tl.where(log_min_p > -float("inf"), peak + log_min_p, -float("inf"))
    some_k = (top_k > 0) & (top_k < vocab_size)
    if some_k:
        reached = tl.div_rn(_top_k_bound(peaks, largest_B, top_k, BLOCKS), temperature)
        bound = tl.maximum(limit, reached)
        floor = bound
    else:
        # All tokens further away hold less than half of what top_p leaves out.
        left_out = 1.0 - tl.minimum(top_p, _BELOW_ONE)
        bound = tl.maximum(limit, largest - tl.log(2.0 * vocab_size / left_out))
        floor = limit
    if some_k | (top_p < 1):
        count, total = _gather(
            source, peaks, kept, temperature, largest, floor, bound, vocab_size, TILE
        )
        if some_k:
            need = tl.minimum(top_k, count).to(tl.int64)
            limit = tl.maximum(limit, _largest_reached(kept, count, limit, largest, need, False))
            total = _mass_from(kept, count, limit, largest)
        if top_p < 1:
            need = tl.maximum(tl.ceil(total.to(tl.float64) * top_p).to(tl.int64), 1)
            limit = tl.maximum(limit, _largest_reached(kept, count, limit, largest, need, True))
    return limit


@triton.jit
@no_type_check
def _limits_kernel(
    logits_RV,
    row_stride,
    shaped_RV,
    lengths_R,
    peaks_RB,
    temperatures_R,
    top_ks_R,
    top_ps_R,
    log_min_ps_R,
    kept_RV,
    limits_R,
    vocab_size: tl.constexpr,
    BLOCKS: tl.constexpr,
    PADDED: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    temperature, top_k = tl.load(temperatures_R + row), tl.load(top_ks_R + row)
    top_p, log_min_p = tl.load(top_ps_R + row), tl.load(log_min_ps_R + row)
    if is_filtered(temperature, top_k, top_p, log_min_p, vocab_size):
        length = tl.load(lengths_R + row)
        source = logits_RV + row * row_stride, shaped_RV + row * vocab_size, length
        filters = temperature, top_k, top_p, log_min_p
        peaks, kept = peaks_RB + row * BLOCKS, kept_RV + row * vocab_size
        limit = _limit_of(source, peaks, kept, filters, vocab_size, BLOCKS, PADDED, TILE)
        tl.store(limits_R + row, limit)


def kept_limits(
    logits_RV: torch.Tensor,
    shaped: Shaped,
    peaks_RB: torch.Tensor,
    filters: RowFilters,
    kept_RV: torch.Tensor,
    limits_R: torch.Tensor,
) -> None:
    """Write what logit / T must reach, of the rows that are filtered.

    `peaks_RB` holds the largest logit of every block; `kept_RV` is scratch, both are float32.
    """
    rows, vocab_size = logits_RV.shape
    blocks = triton.cdiv(vocab_size, BLOCK_LEN)
    _limits_kernel[(rows,)](
        logits_RV,
        logits_RV.stride(0),
        *shaped,
        peaks_RB,
        *filters,
        kept_RV,
        limits_R,
        vocab_size,
        blocks,
        triton.next_power_of_2(blocks),
        _BLOCKS_OF_TILE,
        num_warps=_NUM_WARPS,
    )
