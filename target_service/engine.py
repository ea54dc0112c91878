"""The target's step: run the rows of all sessions, choose a token at every node, keep what agrees.

The only place where the target's model, cache and sampler meet. It blocks; the server runs it in a
thread of its own.

Legend: R rows, K of them that are kept, N nodes of all trees, V vocabulary, X tapped width (layers
* hidden), H hidden.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol

import torch

from kernels.attention import lay_out_rows
from protos.messages import Verdict, VerifyTimings
from target_service.judgement import judge, trees_of
from target_service.kept_rows import KeptRows
from target_service.kv_cache import KvCache
from target_service.kv_memory import slots_of
from target_service.models.target_model import TargetModel
from target_service.session import Rows


@dataclass(frozen=True)
class Outcome:
    """What a step found out for one session: no verdict on a chunk of a prompt.

    Taps are those of the rows that are kept, the first of them at `rows.prefix_len`.
    """

    rows: Rows
    verdict: Verdict | None
    taps_KX: torch.Tensor


class StepEngine(Protocol):
    """What computes steps: the engine below, or that of a GPU."""

    def step(self, batch: Sequence[Rows]) -> list[Outcome]:
        """Compute the rows of all sessions; accept what agrees of their trees, and compact them."""

    def stored_taps(self, pages: Sequence[int], positions: range) -> torch.Tensor:
        """Return the taps of tokens that were computed before, [N, X]."""


class Engine:
    """A model, the layers it is tapped at, and the cache of all sessions."""

    def __init__(self, model: TargetModel, tap_layers: Sequence[int], num_pages: int) -> None:
        self._model = model
        self._tap_layers = tuple(tap_layers)
        tap_width = len(self._tap_layers) * model.config.hidden_size
        self._cache = KvCache(model.kv_shape, num_pages, tap_width)

    @torch.inference_mode()
    def step(self, batch: Sequence[Rows]) -> list[Outcome]:
        """Compute the rows of all sessions; accept what agrees of their trees, and compact them."""
        started = time.perf_counter_ns()
        h_RH, taps_RX = self._forward(batch)
        firsts = [0, *accumulate(len(rows.tokens) for rows in batch)]
        logits_NV = self._model.logits(_rows_of(h_RH, _tree_rows(batch, firsts)))
        forwarded = time.perf_counter_ns()
        verdicts = judge(trees_of(batch), logits_NV)
        kept = [
            KeptRows(rows, first, verdict.path if verdict else ())
            for rows, first, verdict in zip(batch, firsts, verdicts, strict=False)
        ]
        taps_KX = self._keep(kept, taps_RX)
        timings = VerifyTimings(
            forward_us=(forwarded - started) // 1000,
            accept_us=(time.perf_counter_ns() - forwarded) // 1000,
            rows=len(taps_RX),
        )
        shares = taps_KX.split([part.num_rows for part in kept])
        return [
            Outcome(rows, verdict and replace(verdict, timings=timings), taps)
            for rows, verdict, taps in zip(batch, verdicts, shares, strict=True)
        ]

    def stored_taps(self, pages: Sequence[int], positions: range) -> torch.Tensor:
        """Return the taps of tokens that were computed before, [N, X]."""
        return self._cache.taps.of(slots_of(pages, positions))

    def _forward(self, batch: Sequence[Rows]) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = [token for rows in batch for token in rows.tokens]
        layouts = [
            lay_out_rows(self._cache.pages(rows.pages), rows.prefix_len, rows.parents)
            for rows in batch
        ]
        tokens_R = torch.tensor(tokens, device=self._model.device)
        return self._model.forward(tokens_R, layouts, self._cache.kv, self._tap_layers)

    def _keep(self, kept: Sequence[KeptRows], taps_RX: torch.Tensor) -> torch.Tensor:
        """Compact the accepted paths, store the taps of all kept rows, and return these, [K, X]."""
        self._cache.move([move for part in kept for move in part.moves()])
        taps_KX = _rows_of(taps_RX, [place for part in kept for place in part.places()])
        self._cache.taps.store([slot for part in kept for slot in part.slots()], taps_KX)
        return taps_KX


def _rows_of(x_RX: torch.Tensor, places: Sequence[int]) -> torch.Tensor:
    """Return the rows at ascending places; all of them as they are."""
    if len(places) == len(x_RX):
        return x_RX
    return x_RX[torch.tensor(places, dtype=torch.long, device=x_RX.device)]


def _tree_rows(batch: Sequence[Rows], firsts: Sequence[int]) -> list[int]:
    """Return the places of all trees' nodes among the step's rows."""
    return [
        first + node
        for rows, first in zip(batch, firsts, strict=False)
        if rows.root is not None
        for node in range(rows.root, len(rows.tokens))
    ]
