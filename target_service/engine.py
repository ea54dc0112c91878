"""The target's step: run the rows, choose a token at every node, keep what agrees.

The only place where the target's model, cache and sampler meet. It blocks; the server runs it in a
thread of its own.

Legend: R rows, N nodes of the tree, P committed tokens, V vocabulary, T taps, H hidden.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from kernels import tree
from kernels.attention import lay_out_rows
from kernels.sampling import (
    Filters,
    Penalties,
    agreement_tokens,
    penalized_logits,
    token_logprobs,
    top_logprobs,
)
from protos.messages import SamplingParams, TopLogprobs, Verdict, VerifyTimings
from target_service.kv_cache import KvCache
from target_service.models.llama import Llama
from target_service.session import Rows, Session


@dataclass(frozen=True)
class Outcome:
    """What a step found out. `verdict` is None for a chunk of a prompt; taps are of kept rows."""

    num_rows: int
    verdict: Verdict | None
    taps_PTH: torch.Tensor


class Engine:
    """A model and the layers it is tapped at."""

    def __init__(self, model: Llama, tap_layers: Sequence[int]) -> None:
        self._model = model
        self._tap_layers = tuple(tap_layers)

    @torch.inference_mode()
    def step(self, rows: Rows, cache: KvCache, queued_us: int) -> Outcome:
        """Compute the rows; if they carry a tree, accept what agrees and compact the cache.

        The rows waited for `queued_us` microseconds, which the verdict tells.
        """
        started = time.perf_counter_ns()
        h_RH, taps_RTH = self._forward(rows, cache)
        if rows.root is None:
            return Outcome(len(rows.tokens), None, taps_RTH)
        logits_NV = self._model.logits(h_RH[rows.root :])
        forwarded = time.perf_counter_ns()
        path, verdict = self._accept(rows, logits_NV)
        cache.compact(rows.prefix_len + rows.root, path)
        timings = VerifyTimings(
            queue_us=queued_us,
            forward_us=(forwarded - started) // 1000,
            accept_us=(time.perf_counter_ns() - forwarded) // 1000,
            rows=len(rows.tokens),
        )
        num_kept = rows.root + 1 + len(path)
        taps_PTH = _kept_rows(taps_RTH, rows.root, path)
        return Outcome(num_kept, replace(verdict, timings=timings), taps_PTH)

    def _forward(self, rows: Rows, cache: KvCache) -> tuple[torch.Tensor, torch.Tensor]:
        tokens_R = torch.tensor(rows.tokens, device=self._model.device)
        layout = lay_out_rows(rows.prefix_len, rows.parents, self._model.device)
        return self._model.forward(tokens_R, layout, cache, self._tap_layers)

    def _accept(self, rows: Rows, logits_NV: torch.Tensor) -> tuple[list[int], Verdict]:
        session = rows.session
        tokens, parents = rows.tree
        chosen = choose_tokens(session, tokens, parents, logits_NV)
        path, bonus = tree.agreed_path(parents, tokens, chosen)
        committed = (*(tokens[node] for node in path), bonus)
        picked_PV = _kept_rows(logits_NV, 0, path)
        logprobs_P = token_logprobs(picked_PV, torch.tensor(committed, device=picked_PV.device))
        return path, Verdict(
            committed_len=session.committed_len,
            path=tuple(path),
            tokens=committed,
            logprobs=tuple(logprobs_P.tolist()),
            top_logprobs=_top_logprobs(picked_PV, session.sampling.top_logprobs),
        )


def _kept_rows(x_RX: torch.Tensor, root: int, path: Sequence[int]) -> torch.Tensor:
    """Return the rows up to the root and those of the accepted path; a view for a chain's."""
    if tree.is_chain_prefix(path):
        return x_RX[: root + 1 + len(path)]
    return x_RX[[*range(root + 1), *(root + node for node in path)]]


def choose_tokens(
    session: Session, tokens: Sequence[int], parents: Sequence[int], logits_NV: torch.Tensor
) -> list[int]:
    """Return the token that the target itself puts after every node of a tree."""
    sampling = session.sampling
    depths = tree.depths(parents)
    new_tokens = [session.num_new_tokens + depth for depth in depths]
    shaped_NV = _biased(logits_NV, new_tokens, sampling)
    if sampling.penalizes:
        shaped_NV = _penalized(shaped_NV, session, tokens, parents)
    filters = Filters(sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
    positions = [session.committed_len + depth for depth in depths]
    positions_N = torch.tensor(positions, device=logits_NV.device)
    chosen: list[int] = agreement_tokens(shaped_NV, positions_N, sampling.seed, filters).tolist()
    return chosen


def _biased(
    logits_NV: torch.Tensor, new_tokens: Sequence[int], sampling: SamplingParams
) -> torch.Tensor:
    """Add logit_bias, and suppress stop tokens at nodes that come too early for them."""
    if sampling.logit_bias:
        ids = torch.tensor(list(sampling.logit_bias), device=logits_NV.device)
        bias = torch.tensor(list(sampling.logit_bias.values()), device=logits_NV.device)
        logits_NV = logits_NV.index_add(1, ids, bias.expand(len(logits_NV), -1))
    early = [count < sampling.min_new_tokens for count in new_tokens]
    if sampling.suppressed_token_ids and any(early):
        early_N = torch.tensor(early, device=logits_NV.device)
        suppressed_V = torch.zeros_like(logits_NV[0], dtype=torch.bool)
        suppressed_V[list(sampling.suppressed_token_ids)] = True
        logits_NV = logits_NV.masked_fill(early_N[:, None] & suppressed_V, -torch.inf)
    return logits_NV


def _penalized(
    logits_NV: torch.Tensor, session: Session, tokens: Sequence[int], parents: Sequence[int]
) -> torch.Tensor:
    """Apply penalties to every node for the tokens on its own path."""
    sampling, vocab_size = session.sampling, logits_NV.shape[1]
    committed = torch.tensor(session.tokens)
    prompt_V = torch.bincount(committed[: session.prompt_len], minlength=vocab_size)
    answer_V = torch.bincount(committed[session.prompt_len :], minlength=vocab_size)
    counts_NV = answer_V.repeat(len(tokens), 1)
    for node, path in enumerate(tree.paths(parents)):
        for ancestor in path[1:]:
            counts_NV[node, tokens[ancestor]] += 1
    seen_NV = (prompt_V > 0) | (counts_NV > 0)
    penalties = Penalties(
        sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty
    )
    device = logits_NV.device
    return penalized_logits(logits_NV, counts_NV.to(device), seen_NV.to(device), penalties)


def _top_logprobs(logits_PV: torch.Tensor, count: int | None) -> tuple[TopLogprobs, ...]:
    if not count:
        return ()
    ids_PC, logprobs_PC = top_logprobs(logits_PV, count)
    return tuple(
        TopLogprobs(tuple(ids), tuple(logprobs))
        for ids, logprobs in zip(ids_PC.tolist(), logprobs_PC.tolist(), strict=True)
    )
