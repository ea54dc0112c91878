"""The sampler and a drafter's candidates at whole vocabularies.

Legend: R rows, V vocabulary, B blocks, C candidates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from benchmarks.gpu_check.case import Case, Sizes, bytes_of
from kernels import sampling as reference
from kernels.gpu import agreement_sampler
from kernels.gpu import candidates as candidates_of
from kernels.gpu.agreement_sampler import Draw, SamplerScratch
from kernels.gpu.candidates import Candidates, CandidateScratch
from kernels.gpu.choice import Chosen
from kernels.gpu.kept_limit import RowFilters
from kernels.gpu.shaping import Shaped
from kernels.gpu.vocabulary import BLOCK_LEN
from kernels.sampling import Filters

_CANDIDATES = 8
_GREEDY, _SAMPLED, _FILTERED = Filters(0.0), Filters(1.0), Filters(0.8, top_k=50, top_p=0.95)
_TIE = 1e-4
"""Scores so near to each other may change places: noise is right to a few units of its last."""


def cases(sizes: Sizes, device: torch.device) -> Iterator[Case]:
    """Yield greedy, sampled and filtered rows, and candidates of a drafter."""
    for name, filters in (("greedy", _GREEDY), ("sampled", _SAMPLED), ("filtered", _FILTERED)):
        yield _sampler(name, filters, sizes, device)
    yield _candidates(sizes, device)


def _filters_of(rows: int, filters: Filters, device: torch.device) -> RowFilters:
    def of_rows(value: float, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((rows,), value, dtype=dtype, device=device)

    return RowFilters(
        of_rows(filters.temperature, torch.float32),
        of_rows(filters.top_k, torch.int32),
        of_rows(filters.top_p, torch.float32),
        of_rows(filters.min_p, torch.float32).log(),
    )


def _draw(rows: int, device: torch.device) -> Draw:
    seeds_R = torch.arange(rows, device=device) * 7919 - 5
    return Draw(seeds_R, 1000 + torch.arange(rows, device=device))


def _scratch(rows: int, vocabulary: int, device: torch.device) -> SamplerScratch:
    blocks = -(-vocabulary // BLOCK_LEN)
    shapes = (rows, blocks), (rows, 5, blocks), (rows, vocabulary), (rows,)
    return SamplerScratch(*(torch.empty(shape, device=device) for shape in shapes))


def _sampler(name: str, filters: Filters, sizes: Sizes, device: torch.device) -> Case:
    rows, vocabulary = sizes.rows, sizes.vocabulary
    logits_RV = 3 * torch.randn(rows, vocabulary, device=device)
    lengths_R = torch.zeros(rows, dtype=torch.int32, device=device)
    draw, of_rows = _draw(rows, device), _filters_of(rows, filters, device)
    scratch = _scratch(rows, vocabulary, device)
    tokens_R = torch.empty(rows, dtype=torch.long, device=device)
    numbers_R5, logprobs_R = torch.empty(rows, 5, device=device), torch.empty(rows, device=device)
    chosen = Chosen(numbers_R5, tokens_R, logprobs_R)
    shaped = Shaped(torch.empty_like(logits_RV), lengths_R)

    def launch() -> None:
        agreement_sampler.agreement_tokens(logits_RV, shaped, of_rows, draw, scratch, chosen)

    def excess() -> float:
        scores_RV = reference.agreement_scores(logits_RV, draw.positions_R, draw.seeds_R, filters)
        return _missed(scores_RV.amax(-1, keepdim=True), scores_RV, tokens_R[:, None])

    of_kind = f"agreement_tokens, {name}"
    return Case(of_kind, launch, (tokens_R, logprobs_R), excess, bytes_of(logits_RV))


def _missed(best_RC: torch.Tensor, scores_RV: torch.Tensor, tokens_RC: torch.Tensor) -> float:
    """Return by how many ties what was found is less than the best."""
    if not ((tokens_RC >= 0) & (tokens_RC < scores_RV.shape[1])).all():
        return math.inf
    return float((best_RC - scores_RV.gather(1, tokens_RC)).abs().amax()) / _TIE


def _candidates(sizes: Sizes, device: torch.device) -> Case:
    rows, known = sizes.rows, sizes.draft_vocabulary
    logits_RN, blocks = torch.randn(rows, known, device=device), -(-known // BLOCK_LEN)
    draw, filters = _draw(rows, device), _filters_of(rows, _SAMPLED, device)
    scratch = CandidateScratch(
        scores_RN=torch.empty_like(logits_RN),
        peaks_RB=torch.empty(rows, blocks, device=device),
        sums_R3B=torch.empty(rows, 3, blocks, device=device),
        kept_RN=torch.empty_like(logits_RN),
        limits_R=torch.empty(rows, device=device),
        nothing_R=torch.zeros(rows, dtype=torch.int32, device=device),
    )
    tokens_RC = torch.empty(rows, _CANDIDATES, dtype=torch.long, device=device)
    scores_RC, logprobs_RC = torch.empty(2, rows, _CANDIDATES, device=device)
    found = Candidates(tokens_RC, scores_RC, logprobs_RC)

    def launch() -> None:
        candidates_of.agreement_candidates(logits_RN, None, filters, draw, scratch, found)

    def excess() -> float:
        """What was found has the best scores, in their order."""
        scores_RN = reference.agreement_scores(logits_RN, draw.positions_R, draw.seeds_R, _SAMPLED)
        return _missed(scores_RN.topk(_CANDIDATES).values, scores_RN, tokens_RC)

    return Case("agreement_candidates", launch, (tokens_RC,), excess, bytes_of(logits_RN))
