"""Attention of decoding sessions and of a tree, over pages in no order.

Legend: R rows, N sessions, A query heads, C key-value heads, D head size, V size of a value, T
positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from benchmarks.gpu_check.case import ROUNDED, Case, Sizes, bytes_of, excess_of, normal
from kernels import tree
from kernels.gpu.attention_plan import plan_attention
from kernels.gpu.attention_shape import AttentionShape, StepRows, new_plan
from kernels.gpu.latent_attention import LATENT_TILINGS, latent_attention
from kernels.gpu.paged_attention import PAGED_TILINGS, paged_attention
from kernels.gpu.runtime import tiling_of
from kernels.kv_pages import PAGE_LEN, num_pages_for

_HEADS = 8
_SESSIONS = 2
_LATENT, _ROTATED = 512, 64
_PARENTS = (-1, 0, 0, 1, 2, 3, 4, 5)
"""Two chains that begin at the root."""


def cases(sizes: Sizes, device: torch.device) -> Iterator[Case]:
    """Yield ordinary heads, four of which share a key, and latent ones, which all do."""
    yield _paged(sizes, device)
    yield _latent(sizes, device)


@dataclass(frozen=True)
class _Batch:
    """Two sessions with a tree of eight nodes each, behind a context."""

    rows: StepRows
    seen: list[torch.Tensor]
    """Slots of the pool that each row sees, in order."""
    num_pages: int

    @classmethod
    def new(cls, context: int, device: torch.device) -> _Batch:
        nodes = len(_PARENTS)
        per_session = num_pages_for(context + nodes)
        pages_NX = torch.randperm(_SESSIONS * per_session).view(_SESSIONS, per_session)
        paths = tree.paths(_PARENTS)
        masks = [sum(1 << node for node in path) for path in paths]
        depths = [len(path) - 1 for path in paths]

        def ints(values: list[int]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.int32, device=device)

        rows = StepRows(
            session_R=ints([n for n in range(_SESSIONS) for _ in paths]),
            positions_R=ints([context + depth for depth in depths] * _SESSIONS),
            ancestors_R=torch.tensor(masks * _SESSIONS, device=device),
            first_row_N1=ints([nodes * n for n in range(_SESSIONS + 1)]),
            prefix_len_N=ints([context] * _SESSIONS),
            pages_NX=pages_NX.int().to(device),
        )
        seen = []
        for pages_X in pages_NX:
            for path in paths:
                slots = torch.tensor([*range(context), *(context + node for node in path)])
                in_pool = pages_X[slots // PAGE_LEN] * PAGE_LEN + slots % PAGE_LEN
                seen.append(in_pool.to(device))
        return cls(rows, seen, _SESSIONS * per_session)

    def excess(
        self,
        q_RAD: torch.Tensor,
        keys_SCD: torch.Tensor,
        values_SCV: torch.Tensor,
        scale: float,
        out_RAV: torch.Tensor,
    ) -> float:
        """Weights and results are rounded."""
        found = []
        for q_AD, slots_T, out_AV in zip(q_RAD.double(), self.seen, out_RAV, strict=True):
            group = len(q_AD) // keys_SCD.shape[1]
            k_TAD, v_TAV = (
                part_SCX[slots_T].double().repeat_interleave(group, dim=1)
                for part_SCX in (keys_SCD, values_SCV)
            )
            p_AT = (torch.einsum("ad,tad->at", q_AD, k_TAD) * scale).softmax(-1)
            exact_AV = torch.einsum("at,tav->av", p_AT, v_TAV)
            size_AV = torch.einsum("at,tav->av", p_AT, v_TAV.abs())
            found.append(excess_of(out_AV, exact_AV, 2 * ROUNDED * size_AV))
        return max(found)


def _paged(sizes: Sizes, device: torch.device) -> Case:
    heads, kv_heads, dim = _HEADS, _HEADS // 4, 128
    batch = _Batch.new(sizes.context, device)
    shape = AttentionShape(
        tiling_of(PAGED_TILINGS, device),
        heads,
        kv_heads,
        dim,
        dim,
        1,
        _SESSIONS,
        batch.rows.pages_NX.shape[1],
    )
    pool = (batch.num_pages, 1, kv_heads, PAGE_LEN, dim)
    keys_PLCSD, values_PLCSD = normal(2, *pool, device=device)
    q_RAD = normal(len(batch.seen), heads, dim, device=device)
    out_RAD, plan = torch.empty_like(q_RAD), new_plan(shape, len(q_RAD), 512, device)

    def launch() -> None:
        plan_attention(batch.rows, plan)
        paged_attention(q_RAD, keys_PLCSD, values_PLCSD, 0, dim**-0.5, batch.rows, plan, out_RAD)

    def excess() -> float:
        keys_SCD, values_SCD = (
            part[:, 0].transpose(1, 2).flatten(0, 1) for part in (keys_PLCSD, values_PLCSD)
        )
        return batch.excess(q_RAD, keys_SCD, values_SCD, dim**-0.5, out_RAD)

    name = f"paged_attention, context {sizes.context}"
    num_bytes = bytes_of(keys_PLCSD, values_PLCSD, q_RAD, out_RAD)
    return Case(name, launch, (out_RAD,), excess, num_bytes)


def _latent(sizes: Sizes, device: torch.device) -> Case:
    batch = _Batch.new(sizes.context, device)
    dim = _LATENT + _ROTATED
    shape = AttentionShape(
        tiling_of(LATENT_TILINGS, device),
        _HEADS,
        1,
        dim,
        _LATENT,
        1,
        _SESSIONS,
        batch.rows.pages_NX.shape[1],
    )
    keys_PLCSD = normal(batch.num_pages, 1, 1, PAGE_LEN, dim, device=device)
    q_RAD = normal(len(batch.seen), _HEADS, dim, device=device)
    out_RAV = q_RAD.new_empty(len(q_RAD), _HEADS, _LATENT)
    plan = new_plan(shape, len(q_RAD), 512, device)

    def launch() -> None:
        plan_attention(batch.rows, plan)
        latent_attention(q_RAD, keys_PLCSD, 0, dim**-0.5, batch.rows, plan, out_RAV)

    def excess() -> float:
        keys_SCD = keys_PLCSD[:, 0].transpose(1, 2).flatten(0, 1)
        return batch.excess(q_RAD, keys_SCD, keys_SCD[..., :_LATENT], dim**-0.5, out_RAV)

    name = f"latent_attention, context {sizes.context}"
    return Case(name, launch, (out_RAV,), excess, bytes_of(keys_PLCSD, q_RAD, out_RAV))
