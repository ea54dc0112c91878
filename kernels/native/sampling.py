"""The sampler's native implementation, for logits in float32.

Its noise has the reference's uniforms, and differs from the reference's in the last places of its
logarithms: a drafter and its target agree best where both sample natively, or neither.
"""

from __future__ import annotations

import torch

from kernels.noise import Seed, seeds_of_rows
from kernels.sampling import (
    GREEDY_BELOW,
    Filters,
    agreement_scores,
    agreement_tokens,
    log_normalizer,
    token_logprobs,
)

_SERVED = ("cpu", torch.float32)


def register() -> None:
    """Sample natively from now on. The library is loaded."""
    agreement_tokens.register(*_SERVED, _agreement_tokens)
    agreement_scores.register(*_SERVED, _agreement_scores)
    log_normalizer.register(*_SERVED, _log_normalizer)
    token_logprobs.register(*_SERVED, _token_logprobs)


def unregister() -> None:
    """Let the reference sample again."""
    agreement_tokens.unregister(*_SERVED)
    agreement_scores.unregister(*_SERVED)
    log_normalizer.unregister(*_SERVED)
    token_logprobs.unregister(*_SERVED)


def _agreement_tokens(
    logits_NV: torch.Tensor, positions_N: torch.Tensor, seed: Seed, filters: Filters
) -> torch.Tensor:
    if filters.temperature < GREEDY_BELOW:
        return torch.ops.slipstream.likeliest_tokens(logits_NV)
    return torch.ops.slipstream.agreement_tokens(
        *(logits_NV, positions_N, _one_a_row(seed, positions_N)),
        *(filters.temperature, filters.top_k, filters.top_p, filters.min_p),
    )


def _agreement_scores(
    logits_NV: torch.Tensor, positions_N: torch.Tensor, seed: Seed, filters: Filters
) -> torch.Tensor:
    if filters.temperature < GREEDY_BELOW:
        return logits_NV
    return torch.ops.slipstream.agreement_scores(
        *(logits_NV, positions_N, _one_a_row(seed, positions_N)),
        *(filters.temperature, filters.top_k, filters.top_p, filters.min_p),
    )


def _one_a_row(seed: Seed, positions_N: torch.Tensor) -> torch.Tensor:
    if isinstance(seed, torch.Tensor):
        return seed
    return seeds_of_rows([seed], positions_N.device).expand(len(positions_N))


def _log_normalizer(logits_NV: torch.Tensor) -> torch.Tensor:
    return torch.ops.slipstream.log_normalizer(logits_NV)


def _token_logprobs(logits_NV: torch.Tensor, tokens_N: torch.Tensor) -> torch.Tensor:
    return torch.ops.slipstream.token_logprobs(logits_NV, tokens_N)
