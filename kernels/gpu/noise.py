"""The noise of kernels/noise.py in Triton: the same words and uniforms, bit for bit.

All that makes noise of a word is an IEEE operation, rounded to the nearest: two chips, and so a
target and its drafter, draw the same bits.

Legend: R rows, V vocabulary, B blocks of a vocabulary, G groups of 4 tokens, T any tokens.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

_WORD = tl.constexpr(2.0**-32)
_HALF_WORD = tl.constexpr(2.0**-33)
_HIGH_HALF = tl.constexpr(2.0**-16)
# The largest float32 below 1: keeps the noise finite.
_BELOW_ONE = tl.constexpr(1 - 2.0**-24)


@triton.jit
@no_type_check
def uniforms_of(words):
    """(word + 1/2) / 2^32 as the double rounded once, but in float32.

    A word's halves have 16 bits each, so that both terms are exact: only their sum is rounded.
    """
    high = (words >> 16).to(tl.float32) * _HIGH_HALF
    low = (words & 0xFFFF).to(tl.float32) * _WORD + _HALF_WORD
    return tl.minimum(high + low, _BELOW_ONE)


@triton.jit
@no_type_check
def gumbels_of(uniforms):
    """-log(-log(1 - u)), fine-grained near 0, where large values of the noise come from.

    What the subtraction rounds off is made good by a factor (Kahan's log1p).
    """
    rest = 1.0 - uniforms
    lost = 1.0 - rest
    factor = tl.div_rn(uniforms, tl.where(lost > 0, lost, 1.0))
    log_rest = tl.where(lost > 0, tl.log(rest) * factor, -uniforms)
    return -tl.log(-log_rest)


@triton.jit
@no_type_check
def _words(seed, position, groups):
    """The four words of each group: the cipher's answer to (group, position, 0, 0)."""
    counters = groups.to(tl.uint32)
    zeros = counters * 0
    return tl.philox(seed, counters, zeros + position.to(tl.uint32), zeros, zeros)


@triton.jit
@no_type_check
def gumbels_of_groups(seed, position, groups_BG):
    """The noise of all tokens of consecutive groups, [B, 4 G]."""
    first, second, third, fourth = _words(seed, position, groups_BG)
    even, odd = tl.interleave(first, third), tl.interleave(second, fourth)
    return gumbels_of(uniforms_of(tl.interleave(even, odd)))


@triton.jit
@no_type_check
def gumbels_of_tokens(seed, position, tokens_T):
    """The noise of any tokens, [T]: four times the work."""
    first, second, third, fourth = _words(seed, position, tokens_T >> 2)
    place = tokens_T & 3
    low, high = tl.where(place == 0, first, second), tl.where(place == 2, third, fourth)
    return gumbels_of(uniforms_of(tl.where(place < 2, low, high)))


@triton.jit
@no_type_check
def _noise_kernel(seeds_R, positions_R, noise_RV, vocab_size: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1) * BLOCK
    groups = first // 4 + tl.arange(0, BLOCK // 4)
    tokens = first + tl.arange(0, BLOCK)
    noise = gumbels_of_groups(tl.load(seeds_R + row), tl.load(positions_R + row), groups[None, :])
    out = noise_RV + row * vocab_size + tokens
    tl.store(out[None, :], noise, mask=(tokens < vocab_size)[None, :])


def vocabulary_noise(
    seeds_R: torch.Tensor, positions_R: torch.Tensor, noise_RV: torch.Tensor
) -> None:
    """Write the noise of every token at each row's position; seeds are 64 bits as int64."""
    rows, vocab_size = noise_RV.shape
    block = 1024
    grid = (rows, triton.cdiv(vocab_size, block))
    _noise_kernel[grid](seeds_R, positions_R, noise_RV, vocab_size, block, num_warps=4)
