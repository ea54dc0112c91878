"""The token that the target itself puts after every node of the trees of many sessions.

Legend: N nodes of all trees, V vocabulary, P nodes of one tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels import tree
from kernels.noise import seeds_of_rows
from kernels.sampling import Filters, Penalties, agreement_tokens, penalized_logits
from protos.messages import SamplingParams
from target_service.session import Session


@dataclass(frozen=True)
class Tree:
    """A session's tree, and where its nodes begin among those of all trees."""

    session: Session
    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    first: int

    @property
    def end(self) -> int:
        """Where its nodes end among those of all trees."""
        return self.first + len(self.tokens)


def choose_tokens(trees: Sequence[Tree], logits_NV: torch.Tensor) -> list[int]:
    """Return a token for every node. Trees whose sessions share filters are sampled together."""
    groups: dict[Filters, list[Tree]] = {}
    for one in trees:
        groups.setdefault(_filters(one.session.sampling), []).append(one)
    chosen = [0] * len(logits_NV)
    for filters, group in groups.items():
        nodes = [node for one in group for node in range(one.first, one.end)]
        for node, token in zip(nodes, _choose(group, logits_NV, filters), strict=True):
            chosen[node] = token
    return chosen


def _choose(group: Sequence[Tree], logits_NV: torch.Tensor, filters: Filters) -> list[int]:
    depths = [tree.depths(one.parents) for one in group]
    positions = [
        one.session.committed_len + depth
        for one, of in zip(group, depths, strict=True)
        for depth in of
    ]
    seeds = [one.session.sampling.seed for one in group for _ in one.tokens]
    device = logits_NV.device
    chosen: list[int] = agreement_tokens(
        _shaped_logits(group, depths, logits_NV),
        torch.tensor(positions, device=device),
        seeds_of_rows(seeds, device),
        filters,
    ).tolist()
    return chosen


def _shaped_logits(
    group: Sequence[Tree], depths: Sequence[Sequence[int]], logits_NV: torch.Tensor
) -> torch.Tensor:
    """Return the logits of a group's nodes, shaped; without a copy where nothing has to be done."""
    if len(group) == 1:
        return _shaped(group[0], logits_NV, depths[0])
    plain = not any(one.session.sampling.shapes_logits for one in group)
    if plain and sum(len(one.tokens) for one in group) == len(logits_NV):
        return logits_NV
    return torch.cat([_shaped(one, logits_NV, of) for one, of in zip(group, depths, strict=True)])


def _filters(sampling: SamplingParams) -> Filters:
    return Filters(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)


def _shaped(one: Tree, logits_NV: torch.Tensor, depths: Sequence[int]) -> torch.Tensor:
    """Return the logits of a tree's nodes with all that depends on its session and their paths."""
    logits_PV = logits_NV[one.first : one.end]
    new_tokens = [one.session.num_new_tokens + depth for depth in depths]
    biased_PV = _biased(logits_PV, new_tokens, one.session.sampling)
    return _penalized(biased_PV, one) if one.session.sampling.penalizes else biased_PV


def _biased(
    logits_PV: torch.Tensor, new_tokens: Sequence[int], sampling: SamplingParams
) -> torch.Tensor:
    """Add logit_bias, and suppress stop tokens at nodes that come too early for them."""
    if sampling.logit_bias:
        ids = torch.tensor(list(sampling.logit_bias), device=logits_PV.device)
        bias = torch.tensor(list(sampling.logit_bias.values()), device=logits_PV.device)
        logits_PV = logits_PV.index_add(1, ids, bias.expand(len(logits_PV), -1))
    early = [count < sampling.min_new_tokens for count in new_tokens]
    if sampling.suppressed_token_ids and any(early):
        early_P = torch.tensor(early, device=logits_PV.device)
        suppressed_V = torch.zeros_like(logits_PV[0], dtype=torch.bool)
        suppressed_V[list(sampling.suppressed_token_ids)] = True
        logits_PV = logits_PV.masked_fill(early_P[:, None] & suppressed_V, -torch.inf)
    return logits_PV


def _penalized(logits_PV: torch.Tensor, one: Tree) -> torch.Tensor:
    """Apply penalties to every node for the tokens on its own path."""
    session, vocab_size = one.session, logits_PV.shape[1]
    sampling, committed = session.sampling, torch.tensor(session.tokens)
    prompt_V = torch.bincount(committed[: session.prompt_len], minlength=vocab_size)
    answer_V = torch.bincount(committed[session.prompt_len :], minlength=vocab_size)
    counts_PV = answer_V.repeat(len(one.tokens), 1)
    for node, path in enumerate(tree.paths(one.parents)):
        for ancestor in path[1:]:
            counts_PV[node, one.tokens[ancestor]] += 1
    seen_PV = (prompt_V > 0) | (counts_PV > 0)
    penalties = Penalties(
        sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty
    )
    device = logits_PV.device
    return penalized_logits(logits_PV, counts_PV.to(device), seen_PV.to(device), penalties)
