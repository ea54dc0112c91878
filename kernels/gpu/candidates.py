"""What may follow each row of a drafter: `agreement_candidates` of kernels/sampling.py.

Candidates are the largest scores, filtered(logits / T) + noise, in their order; at T = 0 the
largest logits. Told of each are log softmax of the scores and, of the logits, the log-probability.
A drafter may know but some of the target's tokens: noise is that of the target's token, and the
first of equals is the same in both orders, as its tokens ascend.

Scores are written once. One program a row then takes the best block's best token, as often as there
are candidates, so that a block that holds none is not read again.

Legend: R rows, N drafter's vocabulary, B blocks of 1024 tokens, C candidates.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl

from kernels.gpu.agreement_sampler import Draw
from kernels.gpu.kept_limit import RowFilters, kept_limits
from kernels.gpu.noise import gumbels_of_groups, gumbels_of_tokens
from kernels.gpu.shaping import Shaped
from kernels.gpu.vocabulary import BLOCK_LEN, GREEDY_BELOW, finite, is_filtered, load_logits

_BLOCK: tl.constexpr = tl.constexpr(BLOCK_LEN)
_BLOCKS_OF_PROGRAM = 4
_NUM_WARPS = 8


class CandidateScratch(NamedTuple):
    """float32, over which kernels write; but for `nothing_R`, int32, which holds zeros."""

    scores_RN: torch.Tensor
    peaks_RB: torch.Tensor
    sums_R3B: torch.Tensor
    """Of the logits the sums, of the scores the largest and the sums."""
    kept_RN: torch.Tensor
    limits_R: torch.Tensor
    nothing_R: torch.Tensor


class Candidates(NamedTuple):
    """The best first. Tokens that the filters exclude come last, with -inf."""

    tokens_RC: torch.Tensor
    """int64: the target's."""
    scores_RC: torch.Tensor
    """float32, at most 0."""
    logprobs_RC: torch.Tensor
    """float32."""


@triton.jit
@no_type_check
def _score_blocks(
    logits,
    target_ids_N,
    scores,
    sums,
    temperature,
    limit,
    seed,
    position,
    blocks,
    vocab_size: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Write the scores of some blocks of a row, -inf below the limit, and what is told of them."""
    tokens = blocks[:, None] * _BLOCK + tl.arange(0, _BLOCK)[None, :]
    inside, there = tokens < vocab_size, blocks < BLOCKS
    found = load_logits(logits, tokens, inside)
    if temperature >= GREEDY_BELOW:
        if target_ids_N is None:
            groups = blocks[:, None] * (_BLOCK // 4) + tl.arange(0, _BLOCK // 4)[None, :]
            noise = gumbels_of_groups(seed, position, groups)
        else:
            ids = tl.load(target_ids_N + tokens, mask=inside, other=0)
            noise = gumbels_of_tokens(seed, position, ids)
        scaled = tl.div_rn(found, temperature)
        found = tl.where(scaled >= limit, scaled + noise, -float("inf"))
    largest = tl.max(found, 1)
    weights = tl.sum(tl.exp(found - finite(largest)[:, None]), 1)
    tl.store(scores + tokens, found, mask=inside)
    tl.store(sums + BLOCKS + blocks, largest, mask=there)
    tl.store(sums + 2 * BLOCKS + blocks, weights, mask=there)


@triton.jit
@no_type_check
def _scores_kernel(
    logits_RN,
    row_stride,
    target_ids_N,
    temperatures_R,
    top_ks_R,
    top_ps_R,
    log_min_ps_R,
    seeds_R,
    positions_R,
    limits_R,
    scores_RN,
    peaks_RB,
    sums_R3B,
    vocab_size: tl.constexpr,
    BLOCKS: tl.constexpr,
    TILE: tl.constexpr,
    FILTERED: tl.constexpr,
):
    """The scores of rows without filters and the sums of all; or those of rows with filters."""
    row, blocks = tl.program_id(0).to(tl.int64), tl.program_id(1) * TILE + tl.arange(0, TILE)
    logits, sums = logits_RN + row * row_stride, sums_R3B + row * 3 * BLOCKS
    temperature, top_k = tl.load(temperatures_R + row), tl.load(top_ks_R + row)
    top_p, log_min_p = tl.load(top_ps_R + row), tl.load(log_min_ps_R + row)
    limit = -float("inf")
    if not FILTERED:
        tokens = blocks[:, None] * _BLOCK + tl.arange(0, _BLOCK)[None, :]
        found, there = load_logits(logits, tokens, tokens < vocab_size), blocks < BLOCKS
        largest = tl.max(found, 1)
        weights = tl.sum(tl.exp(found - finite(largest)[:, None]), 1)
        tl.store(peaks_RB + row * BLOCKS + blocks, largest, mask=there)
        tl.store(sums + blocks, weights, mask=there)
    if is_filtered(temperature, top_k, top_p, log_min_p, vocab_size) == FILTERED:
        if FILTERED:
            limit = tl.load(limits_R + row)
        _score_blocks(
            logits,
            target_ids_N,
            scores_RN + row * vocab_size,
            sums,
            temperature,
            limit,
            tl.load(seeds_R + row),
            tl.load(positions_R + row),
            blocks,
            vocab_size,
            BLOCKS,
        )


@triton.jit
@no_type_check
def _log_sum(largest_B, sums_B):
    top = tl.max(largest_B, 0)
    return top + tl.log(tl.sum(sums_B * tl.exp(largest_B - finite(top)), 0))


@triton.jit
@no_type_check
def _candidates_kernel(
    logits_RN,
    row_stride,
    target_ids_N,
    scores_RN,
    peaks_RB,
    sums_R3B,
    tokens_RC,
    scores_RC,
    logprobs_RC,
    vocab_size: tl.constexpr,
    BLOCKS: tl.constexpr,
    PADDED: tl.constexpr,
    COUNT: tl.constexpr,
):
    row, blocks = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    there, sums = blocks < BLOCKS, sums_R3B + row * 3 * BLOCKS + blocks
    peaks_B = tl.load(peaks_RB + row * BLOCKS + blocks, mask=there, other=-float("inf"))
    best_B = tl.load(sums + BLOCKS, mask=there, other=-float("inf"))
    log_total = _log_sum(peaks_B, tl.load(sums, mask=there, other=0.0))
    log_score = _log_sum(best_B, tl.load(sums + 2 * BLOCKS, mask=there, other=0.0))
    last, last_id = float("inf"), -1
    for place in range(COUNT):
        block = tl.min(tl.where(best_B == tl.max(best_B, 0), blocks, PADDED), 0)
        ids = block * _BLOCK + tl.arange(0, _BLOCK)
        scores = tl.load(
            scores_RN + row * vocab_size + ids, mask=ids < vocab_size, other=-float("inf")
        )
        # Behind the last one, of equals the larger ids: the others were taken.
        behind = (scores < last) | ((scores == last) & (ids > last_id))
        scores = tl.where(behind, scores, -float("inf"))
        last = tl.max(scores, 0)
        last_id = tl.min(tl.where((scores == last) & (ids < vocab_size), ids, vocab_size - 1), 0)
        rest = tl.max(tl.where(ids == last_id, -float("inf"), scores), 0)
        best_B = tl.where(blocks == block, rest, best_B)
        token = last_id
        if target_ids_N is not None:
            token = tl.load(target_ids_N + last_id)
        logit = tl.load(logits_RN + row * row_stride + last_id).to(tl.float32)
        out = row * COUNT + place
        tl.store(tokens_RC + out, token.to(tl.int64))
        tl.store(scores_RC + out, tl.minimum(last - log_score, 0.0))
        tl.store(logprobs_RC + out, logit - log_total)


def agreement_candidates(
    logits_RN: torch.Tensor,
    target_ids_N: torch.Tensor | None,
    filters: RowFilters,
    draw: Draw,
    scratch: CandidateScratch,
    candidates: Candidates,
) -> None:
    """Write the candidates of each row of bf16 or float32 logits.

    `target_ids` (int32) are the target's tokens that the drafter knows, ascending; None if all.
    """
    rows, vocab_size = logits_RN.shape
    scores_RN, peaks_RB, sums_R3B, kept_RN, limits_R, nothing_R = scratch
    blocks = triton.cdiv(vocab_size, BLOCK_LEN)
    source = logits_RN, logits_RN.stride(0), target_ids_N
    written = scores_RN, peaks_RB, sums_R3B
    for filtered in (False, True):
        if filtered:
            kept_limits(logits_RN, Shaped(kept_RN, nothing_R), peaks_RB, filters, kept_RN, limits_R)
        _scores_kernel[(rows, triton.cdiv(blocks, _BLOCKS_OF_PROGRAM))](
            *source,
            *filters,
            *draw,
            limits_R,
            *written,
            vocab_size,
            blocks,
            _BLOCKS_OF_PROGRAM,
            filtered,
            num_warps=_NUM_WARPS,
        )
    _candidates_kernel[(rows,)](
        *source,
        *written,
        *candidates,
        vocab_size,
        blocks,
        triton.next_power_of_2(blocks),
        candidates.tokens_RC.shape[1],
        num_warps=4,
    )
