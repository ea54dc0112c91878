"""The trees of many sessions, grown together: one forward a step for all that still grow.

Guesses are chosen with the target's seed and filters, so that they agree with it as often as they
can: the first child of a node is what the target would choose, were it this drafter. What is told
of a node is the drafter's own log-probability, at temperature 1 and before filters.

Legend: R rows, H hidden, C candidates of a row, V target's vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from draft_service.drafters import Draft, Wanted
from draft_service.drafters.eagle3_follower import Eagle3Follower
from draft_service.drafters.eagle3_model import Eagle3Model
from draft_service.tree_growth import Candidate, TreeGrowth
from kernels.attention import RowLayout
from kernels.kv_pages import KvPages
from kernels.noise import seeds_of_rows
from kernels.sampling import (
    GREEDY_BELOW,
    Filters,
    agreement_candidates,
    agreement_tokens,
    log_normalizer,
    token_logprobs,
)

_GREEDY = Filters(0.0)


@dataclass(eq=False)
class _Tree:
    """A session's tree, what it grows from, and how its nodes are chosen."""

    wanted: Wanted[Eagle3Follower]
    growth: TreeGrowth
    filters: Filters

    @classmethod
    def of(cls, wanted: Wanted[Eagle3Follower]) -> _Tree:
        sampling, filters = wanted.sampling, _GREEDY
        if sampling.temperature >= GREEDY_BELOW:
            filters = Filters(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
        assert wanted.follower.next_row == len(wanted.tokens) - 1, "all rows are real"
        return cls(wanted, TreeGrowth(wanted.plan), filters)

    @property
    def choice(self) -> tuple[float, ...]:
        """Trees that have this in common choose their nodes together."""
        kept = self.filters
        return self.growth.width, kept.temperature, kept.top_k, kept.top_p, kept.min_p

    @property
    def position(self) -> int:
        """Where the children of the frontier would lie in the text."""
        return len(self.wanted.tokens) + self.growth.depth

    def layout(self) -> RowLayout:
        """Lay out the rows of the frontier."""
        follower, growth = self.wanted.follower, self.growth
        if growth.width == 1:
            return follower.chain(1, growth.depth - 1)
        return follower.branches(growth.paths())


def grow(model: Eagle3Model, kv: KvPages, batch: Sequence[Wanted[Eagle3Follower]]) -> list[Draft]:
    """Return a tree for every session; an empty one if it has no row yet."""
    trees = [_Tree.of(wanted) for wanted in batch]
    growing = [one for one in trees if one.growth.frontier and one.wanted.follower.has_rows]
    if growing:
        _grow_all(model, kv, sorted(growing, key=lambda one: one.choice))
    return [one.growth.draft() for one in trees]


def _grow_all(model: Eagle3Model, kv: KvPages, growing: Sequence[_Tree]) -> None:
    """Grow trees to their end. The last real rows give the roots' children for nothing."""
    h_RH = torch.cat([one.wanted.follower.last_1H for one in growing])
    while True:
        sources = _expand(growing, model.logits(h_RH))
        growing = [one for one in growing if one.growth.frontier]
        if not growing:
            return
        if sources != list(range(len(h_RH))):
            h_RH = h_RH[sources]
        tokens = [node.token for one in growing for node in one.growth.frontier]
        h_RH = model.forward(tokens, h_RH, [one.layout() for one in growing], kv)


def _expand(growing: Sequence[_Tree], logits_RV: torch.Tensor) -> list[int]:
    """Give the nodes of all frontiers their children.

    Returns the row of the parent of each node of the new frontiers.
    """
    candidates = _candidates(growing, logits_RV)
    sources: list[int] = []
    first = 0
    for one in growing:
        end = first + len(one.growth.frontier)
        places = one.growth.expand(candidates[first:end])
        sources += [first + place for place in places]
        first = end
    return sources


def _candidates(growing: Sequence[_Tree], logits_RV: torch.Tensor) -> list[list[Candidate]]:
    """Return what may follow the row of each frontier node, best first."""
    found: list[list[Candidate]] = []
    for _, group in groupby(growing, key=lambda one: one.choice):
        rows = [one for one in group for _ in one.growth.frontier]
        chosen = _choose(rows, logits_RV[len(found) : len(found) + len(rows)])
        found += [
            [Candidate(*candidate) for candidate in zip(*row, strict=True)]
            for row in zip(*(part.tolist() for part in chosen), strict=True)
        ]
    return found


def _choose(
    rows: Sequence[_Tree], logits_RV: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return candidates, their scores and log-probabilities, [R, C] each, best first.

    The trees of all rows choose alike. In a chain the scores do not matter.
    """
    device = logits_RV.device
    positions_R = torch.tensor([one.position for one in rows], device=device)
    seeds_R = seeds_of_rows([one.wanted.sampling.seed for one in rows], device)
    filters, width = rows[0].filters, rows[0].growth.width
    if width == 1:
        tokens_R = agreement_tokens(logits_RV, positions_R, seeds_R, filters)
        logprobs_R1 = token_logprobs(logits_RV, tokens_R)[:, None]
        return tokens_R[:, None], logprobs_R1, logprobs_R1
    ids_RC, scores_RC = agreement_candidates(logits_RV, positions_R, seeds_R, filters, width)
    return ids_RC, scores_RC, logits_RV.gather(-1, ids_RC) - log_normalizer(logits_RV)
