"""Agreement sampling: a token is a function of its logits, the seed and its position.

    token = argmax(filtered(logits / T) + gumbel(seed, position, token)),   at T = 0: argmax(logits)

By the Gumbel-max identity this samples the filtered softmax exactly, and as the noise is shared, a
drafter that knows the seed agrees as often as it can (Daliri et al., "Coupling without
communication and drafter-invariant speculative decoding", arXiv 2408.07978). Verification is
computing that token at every node of a tree and walking where children agree.

Legend: N nodes, V vocabulary, C candidates, B blocks of K tokens, M tokens of some blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kernels.dispatch import Op
from kernels.noise import Seed, gumbel, gumbel_of_vocabulary

# Dividing by less would overflow; such a temperature means greedy, as it does to vLLM.
GREEDY_BELOW = 1e-5
_FEW_CANDIDATES = 1024
_VOCABULARY_BLOCK = 1024
_SEARCH_BLOCK = 128


@dataclass(frozen=True)
class Filters:
    """Temperature and truncation. 0 or -1 turns top_k off, 1 top_p, 0 min_p."""

    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


@Op
def agreement_tokens(
    logits_NV: torch.Tensor, positions_N: torch.Tensor, seed: Seed, filters: Filters
) -> torch.Tensor:
    """Return the token (int64, [N]) that each row of float32 logits puts at its position.

    The seed is one for all rows, or one a row, [N].
    """
    if filters.temperature < GREEDY_BELOW:
        return logits_NV.argmax(-1)
    kept_NV = filtered_logits(logits_NV, filters)
    seed = seed[:, None] if isinstance(seed, torch.Tensor) else seed
    most = int((kept_NV > -torch.inf).sum(-1).max())
    if most > _FEW_CANDIDATES:
        noise_NV = gumbel_of_vocabulary(seed, positions_N[:, None], kept_NV.shape[-1])
        return (kept_NV + noise_NV).argmax(-1)
    # In ascending order, so that ties go to the smaller id as they do above.
    ids_NC = kept_NV.topk(most, dim=-1).indices.sort(-1).values
    noise_NC = gumbel(seed, positions_N[:, None], ids_NC)
    best_N1 = (kept_NV.gather(-1, ids_NC) + noise_NC).argmax(-1, keepdim=True)
    return ids_NC.gather(-1, best_N1)[:, 0]


@Op
def agreement_scores(
    logits_NV: torch.Tensor, positions_N: torch.Tensor, seed: Seed, filters: Filters
) -> torch.Tensor:
    """Return what `agreement_tokens` takes the largest of, [N, V]: -inf outside the filters."""
    if filters.temperature < GREEDY_BELOW:
        return logits_NV
    seed = seed[:, None] if isinstance(seed, torch.Tensor) else seed
    noise_NV = gumbel_of_vocabulary(seed, positions_N[:, None], logits_NV.shape[-1])
    return filtered_logits(logits_NV, filters) + noise_NV


def agreement_candidates(
    logits_NV: torch.Tensor, positions_N: torch.Tensor, seed: Seed, filters: Filters, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tokens of the largest `agreement_scores` and log softmax of these, [N, C] each.

    Largest first: the first is the token of `agreement_tokens`. C is `count`, or the vocabulary if
    that is smaller. Tokens that the filters exclude come last, with -inf.
    """
    scores_NV = agreement_scores(logits_NV, positions_N, seed, filters)
    ids_NC, largest_NC = _largest(scores_NV, min(count, scores_NV.shape[-1]))
    return ids_NC, largest_NC - log_normalizer(scores_NV)


def _largest(scores_NV: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return where the largest of every row are, and what, [N, C]. Of equals the first come first.

    Sorting a whole vocabulary is slow: they lie in as many blocks, those with the largest maxima.
    """
    blocks_NBK = F.pad(scores_NV, (0, -scores_NV.shape[-1] % _SEARCH_BLOCK), value=-torch.inf)
    blocks_NBK = blocks_NBK.unflatten(-1, (-1, _SEARCH_BLOCK))
    maxima = blocks_NBK.amax(-1).sort(dim=-1, descending=True, stable=True)
    blocks_NC1 = maxima.indices[:, :count].sort(-1).values[..., None]
    within_K = torch.arange(_SEARCH_BLOCK, device=scores_NV.device)
    ids_NM = (blocks_NC1 * _SEARCH_BLOCK + within_K).flatten(1)
    found_NCK = blocks_NBK.gather(1, blocks_NC1.expand(-1, -1, _SEARCH_BLOCK))
    found = found_NCK.flatten(1).sort(dim=-1, descending=True, stable=True)
    return ids_NM.gather(-1, found.indices[:, :count]), found.values[:, :count]


def filtered_logits(logits_NV: torch.Tensor, filters: Filters) -> torch.Tensor:
    """Return logits / T with -inf outside min_p, top_k and top_p, in that order (as vLLM does).

    Tokens that tie with the last one kept are kept too, so that no order of sorting matters.
    """
    kept_NV = logits_NV / filters.temperature
    if filters.min_p > 0:
        limit_N1 = kept_NV.amax(-1, keepdim=True) + torch.tensor(filters.min_p).log()
        kept_NV = kept_NV.masked_fill(kept_NV < limit_N1, -torch.inf)
    if 0 < filters.top_k < kept_NV.shape[-1]:
        limit_N1 = kept_NV.topk(filters.top_k, dim=-1).values[:, -1:]
        kept_NV = kept_NV.masked_fill(kept_NV < limit_N1, -torch.inf)
    if filters.top_p < 1:
        limit_N1 = _top_p_limit(kept_NV, filters.top_p)
        kept_NV = kept_NV.masked_fill(kept_NV < limit_N1, -torch.inf)
    return kept_NV


def _top_p_limit(logits_NV: torch.Tensor, top_p: float) -> torch.Tensor:
    """Return the smallest logit of the fewest likeliest tokens that hold `top_p` of the mass.

    Sorting a whole vocabulary is slow: a short head of it is tried first, and doubled until it
    holds enough. The running sum over the head has the same bits however long the head is.
    """
    total_N1 = log_normalizer(logits_NV)
    vocab_size = logits_NV.shape[-1]
    head = min(64, vocab_size)
    while True:
        head_NC = logits_NV.topk(head, dim=-1).values
        mass_NC = torch.exp(head_NC - total_N1).cumsum(-1)
        if head == vocab_size or bool((mass_NC[:, -1] >= top_p).all()):
            break
        head = min(head * 8, vocab_size)
    last_N1 = (mass_NC < top_p).sum(-1, keepdim=True).clamp_(max=head - 1)
    return head_NC.gather(-1, last_N1)


@dataclass(frozen=True)
class Penalties:
    """What repetition costs. presence and frequency count the answer, repetition the prompt too."""

    presence: float
    frequency: float
    repetition: float


def penalized_logits(
    logits_NV: torch.Tensor,
    answer_counts_NV: torch.Tensor,
    seen_NV: torch.Tensor,
    penalties: Penalties,
) -> torch.Tensor:
    """Return logits less what the tokens of each node's own past cost (int64 counts, bool seen)."""
    scaled_NV = torch.where(
        logits_NV > 0, logits_NV / penalties.repetition, logits_NV * penalties.repetition
    )
    kept_NV = torch.where(seen_NV, scaled_NV, logits_NV)
    counts_NV = answer_counts_NV.to(kept_NV.dtype)
    return kept_NV - penalties.frequency * counts_NV - penalties.presence * (counts_NV > 0)


@Op
def log_normalizer(logits_NV: torch.Tensor) -> torch.Tensor:
    """Return log sum exp of every row, [N, 1], summed block after block of the vocabulary.

    `torch.logsumexp` splits the sum of a single row among threads, but not that of several rows:
    its last bit depends on how many rows there are.
    """
    maxima_N1 = logits_NV.amax(-1, keepdim=True)
    weights_NV = torch.exp(logits_NV - maxima_N1)
    weights_NV = F.pad(weights_NV, (0, -weights_NV.shape[-1] % _VOCABULARY_BLOCK))
    block_sums = weights_NV.unflatten(-1, (-1, _VOCABULARY_BLOCK)).sum(-1)
    return maxima_N1 + block_sums.cumsum(-1)[:, -1:].log()


@Op
def token_logprobs(logits_NV: torch.Tensor, tokens_N: torch.Tensor) -> torch.Tensor:
    """Return log softmax(logits)[token] of every row, [N]."""
    return (logits_NV.gather(-1, tokens_N[:, None]) - log_normalizer(logits_NV))[:, 0]


def top_logprobs(logits_NV: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the likeliest tokens of every row and their log softmax, [N, count], best first."""
    top = logits_NV.topk(count, dim=-1)
    return top.indices, top.values - log_normalizer(logits_NV)
