"""Agreement sampling of kernels/sampling.py for any mix of rows, and the log-probability chosen.

    token = argmax(filtered(logits / T) + gumbel(seed, position, token)),   at T = 0: argmax(logits)

Four launches: the blocks of all rows (what a row without filters needs is read once, here), the
limits of filtered rows, the blocks of those again as far as they reach the limit, and a merge. What
a row says of some part of the vocabulary is five numbers; parts are blocks, or the shards of a
tensor-parallel target, whose ranks exchange these five numbers a row and merge them. A limit is one
of a whole row: where rows are filtered, ranks gather logits first.

Legend: R rows, V vocabulary, B blocks of 1024 tokens, 5 numbers of a part (kernels/gpu/choice.py).
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl

from kernels.gpu.choice import Chosen, merge_parts
from kernels.gpu.kept_limit import RowFilters, kept_limits
from kernels.gpu.noise import gumbels_of_groups
from kernels.gpu.shaping import Shaped
from kernels.gpu.vocabulary import (
    BLOCK_LEN,
    GREEDY_BELOW,
    finite,
    is_filtered,
    load_logits,
    load_shaped,
)

_BLOCK: tl.constexpr = tl.constexpr(BLOCK_LEN)
_BLOCKS_OF_PROGRAM = 4
_NUM_WARPS = 8


class Draw(NamedTuple):
    """What each row's noise is drawn with: int64, seeds of 64 bits."""

    seeds_R: torch.Tensor
    positions_R: torch.Tensor


class SamplerScratch(NamedTuple):
    """float32, over which kernels write."""

    peaks_RB: torch.Tensor
    parts_R5B: torch.Tensor
    kept_RV: torch.Tensor
    limits_R: torch.Tensor


@triton.jit
@no_type_check
def _scores(found, temperature, seed, position, first_token, blocks):
    """What the largest is taken of, [blocks, 1024]."""
    scores = found
    if temperature >= GREEDY_BELOW:
        groups = tl.arange(0, _BLOCK // 4)[None, :] + (first_token + blocks * _BLOCK)[:, None] // 4
        scores = tl.div_rn(found, temperature) + gumbels_of_groups(seed, position, groups)
    return scores


@triton.jit
@no_type_check
def _store_best(scores, logits, first_token, parts, blocks, BLOCKS: tl.constexpr):
    there = blocks < BLOCKS
    best, places = tl.max(scores, axis=1, return_indices=True)
    tokens = blocks * _BLOCK + places
    tl.store(parts + 2 * BLOCKS + blocks, best, mask=there)
    tl.store(parts + 3 * BLOCKS + blocks, (first_token + tokens).to(tl.float32), mask=there)
    tl.store(parts + 4 * BLOCKS + blocks, load_logits(logits, tokens, there), mask=there)


@triton.jit
@no_type_check
def _blocks_kernel(
    logits_RV,
    row_stride,
    first_token,
    shaped_RV,
    lengths_R,
    temperatures_R,
    top_ks_R,
    top_ps_R,
    log_min_ps_R,
    seeds_R,
    positions_R,
    peaks_RB,
    parts_R5B,
    vocab_size: tl.constexpr,
    BLOCKS: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    blocks = tl.program_id(1) * TILE + tl.arange(0, TILE)
    there = blocks < BLOCKS
    tokens = blocks[:, None] * _BLOCK + tl.arange(0, _BLOCK)[None, :]
    logits, parts = logits_RV + row * row_stride, parts_R5B + row * 5 * BLOCKS
    raw = load_logits(logits, tokens, tokens < vocab_size)
    largest = tl.max(raw, 1)
    sums = tl.sum(tl.exp(raw - finite(largest)[:, None]), 1)
    tl.store(parts + blocks, largest, mask=there)
    tl.store(parts + BLOCKS + blocks, sums, mask=there)
    found, length = raw, tl.load(lengths_R + row)
    if length > 0:
        found = load_logits(shaped_RV + row * vocab_size, tokens, tokens < vocab_size)
    tl.store(peaks_RB + row * BLOCKS + blocks, tl.max(found, 1), mask=there)
    temperature, top_k = tl.load(temperatures_R + row), tl.load(top_ks_R + row)
    top_p, log_min_p = tl.load(top_ps_R + row), tl.load(log_min_ps_R + row)
    if not is_filtered(temperature, top_k, top_p, log_min_p, vocab_size):
        seed, position = tl.load(seeds_R + row), tl.load(positions_R + row)
        scores = _scores(found, temperature, seed, position, first_token, blocks)
        _store_best(scores, logits, first_token, parts, blocks, BLOCKS)


@triton.jit
@no_type_check
def _race_kernel(
    logits_RV,
    row_stride,
    shaped_RV,
    lengths_R,
    temperatures_R,
    top_ks_R,
    top_ps_R,
    log_min_ps_R,
    seeds_R,
    positions_R,
    peaks_RB,
    limits_R,
    parts_R5B,
    vocab_size: tl.constexpr,
    BLOCKS: tl.constexpr,
    TILE: tl.constexpr,
):
    """The best of filtered rows: no block is read whose likeliest token is not kept."""
    row = tl.program_id(0).to(tl.int64)
    temperature, top_k = tl.load(temperatures_R + row), tl.load(top_ks_R + row)
    top_p, log_min_p = tl.load(top_ps_R + row), tl.load(log_min_ps_R + row)
    if is_filtered(temperature, top_k, top_p, log_min_p, vocab_size):
        blocks = tl.program_id(1) * TILE + tl.arange(0, TILE)
        limit, there = tl.load(limits_R + row), blocks < BLOCKS
        peaks = tl.load(peaks_RB + row * BLOCKS + blocks, mask=there, other=-float("inf"))
        reaching = there & (tl.div_rn(peaks, temperature) >= limit)
        logits, parts = logits_RV + row * row_stride, parts_R5B + row * 5 * BLOCKS
        scores = tl.full([TILE, _BLOCK], -float("inf"), tl.float32)
        if tl.max(reaching.to(tl.int32), 0) > 0:
            tokens = blocks[:, None] * _BLOCK + tl.arange(0, _BLOCK)[None, :]
            inside = (tokens < vocab_size) & reaching[:, None]
            shaped, length = shaped_RV + row * vocab_size, tl.load(lengths_R + row)
            found = load_shaped(logits, shaped, length, tokens, inside)
            seed, position = tl.load(seeds_R + row), tl.load(positions_R + row)
            drawn = _scores(found, temperature, seed, position, 0, blocks)
            kept = tl.div_rn(found, temperature) >= limit
            scores = tl.where(kept, drawn, -float("inf"))
        _store_best(scores, logits, 0, parts, blocks, BLOCKS)


def agreement_tokens(
    logits_RV: torch.Tensor,
    shaped: Shaped,
    filters: RowFilters,
    draw: Draw,
    scratch: SamplerScratch,
    chosen: Chosen,
) -> None:
    """Write what each row of bf16 or float32 logits chooses."""
    _look_at_blocks(logits_RV, shaped, filters, draw, scratch, 0)
    kept_limits(logits_RV, shaped, scratch.peaks_RB, filters, scratch.kept_RV, scratch.limits_R)
    grid, sizes = _blocks_of(logits_RV)
    _race_kernel[grid](
        logits_RV,
        logits_RV.stride(0),
        *shaped,
        *filters,
        *draw,
        scratch.peaks_RB,
        scratch.limits_R,
        scratch.parts_R5B,
        *sizes,
        num_warps=_NUM_WARPS,
    )
    merge_parts(scratch.parts_R5B, *chosen)


def choose_of_shard(
    logits_RV: torch.Tensor,
    shaped: Shaped,
    filters: RowFilters,
    draw: Draw,
    scratch: SamplerScratch,
    chosen: Chosen,
    first_token: int,
) -> None:
    """Write what each row says of a shard of the vocabulary: a part, to be merged with the others.

    The shard begins at `first_token`, a multiple of 4. Rows must not be filtered.
    """
    assert first_token % 4 == 0, "noise is drawn for groups of 4 tokens"
    _look_at_blocks(logits_RV, shaped, filters, draw, scratch, first_token)
    merge_parts(scratch.parts_R5B, *chosen)


def _look_at_blocks(
    logits_RV: torch.Tensor,
    shaped: Shaped,
    filters: RowFilters,
    draw: Draw,
    scratch: SamplerScratch,
    first_token: int,
) -> None:
    grid, sizes = _blocks_of(logits_RV)
    _blocks_kernel[grid](
        logits_RV,
        logits_RV.stride(0),
        first_token,
        *shaped,
        *filters,
        *draw,
        scratch.peaks_RB,
        scratch.parts_R5B,
        *sizes,
        num_warps=_NUM_WARPS,
    )


def _blocks_of(logits_RV: torch.Tensor) -> tuple[tuple[int, int], tuple[int, int, int]]:
    """Return the grid over the blocks of rows, and the sizes that kernels are compiled for."""
    rows, vocab_size = logits_RV.shape
    blocks = triton.cdiv(vocab_size, BLOCK_LEN)
    grid = rows, triton.cdiv(blocks, _BLOCKS_OF_PROGRAM)
    return grid, (vocab_size, blocks, _BLOCKS_OF_PROGRAM)
