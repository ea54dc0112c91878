"""What a row says of some part of the vocabulary, and the choice that its parts make together.

Five numbers: the largest logit, the sum of e^(logit - largest), and the best score with its token
and that token's logit. Tokens are exact in float32. Of equal scores the smallest token wins, and
sums are added in the order of the parts, of which there are as many whatever the rows.

Legend: R rows, P parts, 5 numbers of each.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl

from kernels.gpu.vocabulary import finite

# More than any token, and exact in float32 as all tokens are.
_NO_TOKEN = tl.constexpr(2.0**24)


class Chosen(NamedTuple):
    """What is said of each row: the five numbers, float32, the token, int64, and its logprob."""

    whole_R5: torch.Tensor
    tokens_R: torch.Tensor
    logprobs_R: torch.Tensor


@triton.jit(do_not_specialize=["row_stride", "number_stride", "part_stride"])
@no_type_check
def _merge_kernel(
    parts,
    row_stride,
    number_stride,
    part_stride,
    whole_R5,
    tokens_R,
    logprobs_R,
    PARTS: tl.constexpr,
    PADDED: tl.constexpr,
):
    row, index = tl.program_id(0).to(tl.int64), tl.arange(0, PADDED)
    there, first = index < PARTS, parts + row * row_stride + index * part_stride
    maxima = tl.load(first, mask=there, other=-float("inf"))
    sums = tl.load(first + number_stride, mask=there, other=0.0)
    scores = tl.load(first + 2 * number_stride, mask=there, other=-float("inf"))
    tokens = tl.load(first + 3 * number_stride, mask=there, other=_NO_TOKEN)
    logits = tl.load(first + 4 * number_stride, mask=there, other=0.0)
    largest, best = tl.max(maxima, 0), tl.max(scores, 0)
    total = tl.sum(sums * tl.exp(maxima - finite(largest)), 0)
    token = tl.min(tl.where(scores == best, tokens, _NO_TOKEN), 0)
    logit = tl.sum(tl.where(tokens == token, logits, 0.0), 0)
    whole = whole_R5 + row * 5
    tl.store(whole, largest)
    tl.store(whole + 1, total)
    tl.store(whole + 2, best)
    tl.store(whole + 3, token)
    tl.store(whole + 4, logit)
    tl.store(tokens_R + row, token.to(tl.int64))
    tl.store(logprobs_R + row, logit - (largest + tl.log(total)))


def merge_parts(
    parts: torch.Tensor, whole_R5: torch.Tensor, tokens_R: torch.Tensor, logprobs_R: torch.Tensor
) -> None:
    """Merge what is said of parts, [R, 5, P], for instance of gathered shards; write what follows.

    The token is int64, its log-probability that of the unfiltered, unshaped logits.
    """
    rows, _, count = parts.shape
    _merge_kernel[(rows,)](
        parts,
        *parts.stride(),
        whole_R5,
        tokens_R,
        logprobs_R,
        count,
        triton.next_power_of_2(count),
        num_warps=4,
    )
