"""Verdicts: what of every tree agrees with the tokens that the target itself puts there.

Legend: N nodes of all trees, K of them that are accepted or roots, V vocabulary, C candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch

from kernels import tree
from kernels.sampling import token_logprobs, top_logprobs
from protos.messages import TopLogprobs, Verdict
from target_service.session import Rows
from target_service.token_choice import Tree, choose_tokens


def trees_of(batch: Sequence[Rows]) -> list[Tree | None]:
    """Return every session's tree; None for a chunk of a prompt."""
    trees: list[Tree | None] = []
    first = 0
    for rows in batch:
        trees.append(None if rows.root is None else Tree(rows.session, *rows.tree, first))
        first += len(rows.tokens) - rows.num_prompt_rows
    return trees


def judge(trees: Sequence[Tree | None], logits_NV: torch.Tensor) -> list[Verdict | None]:
    """Return the verdict on every tree, without timings."""
    there = [one for one in trees if one is not None]
    verdicts = iter(_verdicts(there, logits_NV) if there else ())
    return [None if one is None else next(verdicts) for one in trees]


def _verdicts(trees: Sequence[Tree], logits_NV: torch.Tensor) -> list[Verdict]:
    chosen = choose_tokens(trees, logits_NV)
    paths, committed = [], []
    for one in trees:
        path, bonus = _path(one, chosen[one.first : one.end])
        paths.append(path)
        committed.append((*(one.tokens[node] for node in path), bonus))
    picked_KV = _picked(trees, paths, logits_NV)
    tokens_K = torch.tensor([token for tokens in committed for token in tokens])
    logprobs_K = token_logprobs(picked_KV, tokens_K.to(picked_KV.device)).tolist()
    ends = pairwise([0, *accumulate(map(len, committed))])
    return [
        Verdict(
            committed_len=one.session.committed_len,
            path=tuple(path),
            tokens=tokens,
            logprobs=tuple(logprobs_K[start:end]),
            top_logprobs=top_logprobs_of(picked_KV[start:end], one.session.sampling.top_logprobs),
        )
        for one, path, tokens, (start, end) in zip(trees, paths, committed, ends, strict=True)
    ]


def _path(one: Tree, chosen: Sequence[int]) -> tuple[list[int], int]:
    """Return the accepted nodes without the root, and the bonus token."""
    forced = one.session.forced
    if forced is None:
        return tree.agreed_path(one.parents, one.tokens, chosen)
    path = forced.path(one.parents)
    return path, chosen[path[-1] if path else 0]


def _picked(
    trees: Sequence[Tree], paths: Sequence[list[int]], logits_NV: torch.Tensor
) -> torch.Tensor:
    """Return the logits that the committed tokens were chosen from, [K, V]."""
    picked = [
        one.first + node for one, path in zip(trees, paths, strict=True) for node in (0, *path)
    ]
    if len(picked) == len(logits_NV):
        return logits_NV
    return logits_NV[torch.tensor(picked, device=logits_NV.device)]


def top_logprobs_of(logits_KV: torch.Tensor, count: int | None) -> tuple[TopLogprobs, ...]:
    """Return the likeliest tokens of every row of float32 logits; nothing if none are wanted."""
    if not count:
        return ()
    ids_KC, logprobs_KC = top_logprobs(logits_KV, count)
    return tuple(
        TopLogprobs(tuple(ids), tuple(logprobs))
        for ids, logprobs in zip(ids_KC.tolist(), logprobs_KC.tolist(), strict=True)
    )
