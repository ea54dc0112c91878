"""Attention as Kimi-K2.5 on eight GPUs, and drafters with ordinary heads, launch it."""

import torch
from triton.runtime import driver

from kernels.gpu.attention_plan import plan_attention
from kernels.gpu.attention_shape import AttentionShape, StepRows, Tiling, new_plan
from kernels.gpu.latent_attention import LATENT_TILINGS, latent_attention
from kernels.gpu.paged_attention import PAGED_TILINGS, paged_attention
from kernels.kv_pages import PAGE_LEN
from tests.kernels.gpu.proofs.compile_spec import CompileSpec, Needs, Step, empty

ROWS, SESSIONS, PAGES, ITEMS = 64, 16, 512, 1024
LAYER = 3


def paged_step(heads: int, kv_heads: int, dim: int) -> Step:
    tiling = _of_chip(PAGED_TILINGS)
    shape = AttentionShape(tiling, heads, kv_heads, dim, dim, 61, SESSIONS, PAGES)
    plan, rows = new_plan(shape, ROWS, ITEMS, torch.device("cpu")), _rows()
    q_RAD, out_RAD = empty(ROWS, heads, dim), empty(ROWS, heads, dim)
    keys, values = (empty(8, 61, kv_heads, PAGE_LEN, dim) for _ in range(2))
    return lambda n: (
        plan_attention(_first(rows, n), plan),
        paged_attention(q_RAD[:n], keys, values, LAYER, 0.1, _first(rows, n), plan, out_RAD[:n]),
    )


def _latent(heads: int) -> Step:
    shape = AttentionShape(_of_chip(LATENT_TILINGS), heads, 1, 576, 512, 61, SESSIONS, PAGES)
    plan, rows = new_plan(shape, ROWS, ITEMS, torch.device("cpu")), _rows()
    q_RAD, out_RAL = empty(ROWS, heads, 576), empty(ROWS, heads, 512)
    keys = empty(8, 61, 1, PAGE_LEN, 576)
    return lambda n: (
        plan_attention(_first(rows, n), plan),
        latent_attention(q_RAD[:n], keys, LAYER, 0.1, _first(rows, n), plan, out_RAL[:n]),
    )


def _of_chip(tilings: dict[int, Tiling]) -> Tiling:
    """The chip that is compiled for; an H200 where none is."""
    active = driver._active
    return tilings[active.get_current_target().arch // 10 if active else 9]


def _rows() -> StepRows:
    per_row, masks = torch.zeros(ROWS, dtype=torch.int32), torch.zeros(ROWS, dtype=torch.int64)
    first, prefix = (torch.zeros(n, dtype=torch.int32) for n in (SESSIONS + 1, SESSIONS))
    pages_NX = torch.zeros(SESSIONS, PAGES, dtype=torch.int32)
    return StepRows(per_row, per_row.clone(), masks, first, prefix, pages_NX)


def _first(rows: StepRows, n: int) -> StepRows:
    return StepRows(*(x[:n] for x in rows[:3]), *rows[3:])


_PLANNED = {
    "_share_out": Needs(wide_loads=False),
    "_find_tails": Needs(wide_loads=False),
    "_add_parts": Needs(wide_loads=False),
}
_ATTEND = Needs(tensor_cores=True, waits=True)
SIZES = (1, 2, 3, 16, 33, 64)
SPECS = [
    CompileSpec(
        f"attention of {heads} heads of {dim} on {kv_heads}",
        lambda heads=heads, kv_heads=kv_heads, dim=dim: paged_step(heads, kv_heads, dim),
        {**_PLANNED, "_attend": _ATTEND},
        SIZES,
    )
    for heads, kv_heads, dim in [(64, 8, 128), (9, 3, 64), (32, 32, 96)]
] + [
    CompileSpec(
        f"latent attention of {heads} heads",
        lambda heads=heads: _latent(heads),
        {**_PLANNED, "_attend_latent": _ATTEND},
        SIZES,
    )
    for heads in (8, 64)
]
