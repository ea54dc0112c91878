"""Rows of logits as kernels read them: in float32, and as integers of the same order.

Sums over a vocabulary are sums of blocks of 1024 tokens, added in order (docs/losslessness.md).
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

BLOCK_LEN = 1024
# Temperatures below mean greedy, as in kernels/sampling.py.
GREEDY_BELOW = tl.constexpr(1e-5)
_SIGN = tl.constexpr(0x80000000)
_ALL_BUT_SIGN = tl.constexpr(0x7FFFFFFF)


@triton.jit
@no_type_check
def load_logits(logits, tokens, inside):
    """Logits in float32; -inf for NaN, and for what is outside."""
    found = tl.load(logits + tokens, mask=inside, other=-float("inf")).to(tl.float32)
    return tl.where(found == found, found, -float("inf"))


@triton.jit
@no_type_check
def load_shaped(logits, shaped, length, tokens, inside):
    """What a row chooses by: its shaped logits, if it has a list (kernels/gpu/shaping.py)."""
    if length > 0:
        found = load_logits(shaped, tokens, inside)
    else:
        found = load_logits(logits, tokens, inside)
    return found


@triton.jit
@no_type_check
def finite(maxima):
    """What may be subtracted from logits: 0 in place of -inf, where all of them are -inf."""
    return tl.where(maxima > -float("inf"), maxima, 0.0)


@triton.jit
@no_type_check
def is_filtered(temperature, top_k, top_p, log_min_p, vocab_size: tl.constexpr):
    """Whether a row's filters can exclude a token."""
    some = ((top_k > 0) & (top_k < vocab_size)) | (top_p < 1) | (log_min_p > -float("inf"))
    return some & (temperature >= GREEDY_BELOW)


@triton.jit
@no_type_check
def ordered(values):
    """Float32 values as uint32 of the same order; -0 comes just before 0."""
    bits = values.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & _ALL_BUT_SIGN)).to(tl.uint32, bitcast=True) ^ _SIGN


@triton.jit
@no_type_check
def value_of(key):
    """The float32 value that `ordered` makes this of."""
    bits = (key ^ _SIGN).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & _ALL_BUT_SIGN)).to(tl.float32, bitcast=True)
