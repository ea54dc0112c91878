"""Latent attention of all rows of a step over their pages: one key of all heads, its own value.

    key = [c, r],   value = c,   out = sum_s 2^(x_s - m) c_s / sum_s 2^(x_s - m)

with x_s = scale log2(e) (n . c_s + t . r_s) for the query [n, t]: the latent part c (of 512
elements in Kimi-K2.5) and the rotated part r (64). A page is read once, for scores and for sums.
Blocks, parts and roundings are those of `paged_attention`. c is worked on in quarters, so that what
lies in registers at a time fits.

Legend: see `attention_shape` and `key_blocks`; A query heads, D = L + E elements of a key, of them
L latent (four quarters of Y) and E rotated, P pages, Z layers.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from kernels.gpu.attention_parts import LOWEST, add_parts, keep_masses, keep_sums
from kernels.gpu.attention_shape import AttentionPlan, PlanBuffers, StepRows, Tiling
from kernels.gpu.key_blocks import (
    Tile,
    find_blocks,
    find_keys,
    find_parts,
    find_tile,
    rows_of_slots,
    weigh,
)

LATENT_TILINGS = {
    9: Tiling(lines=16, warps=8, stages=2, programs=132),
    10: Tiling(lines=16, warps=8, stages=2, programs=148),
    12: Tiling(lines=16, warps=8, stages=1, programs=188),
}
"""By major compute capability: H100 and H200, B200, RTX PRO 6000."""


def check_sizes(latent: int, rotated: int) -> None:
    """Raise ValueError for sizes that tiles cannot have: products have 16 inputs or more."""
    for name, size, least in (("latent", latent, 64), ("rotated", rotated, 16)):
        if size < least or size & (size - 1):
            raise ValueError(
                f"the {name} part of keys has {size} elements; kernels for GPUs take powers of two "
                f"from {least} on"
            )


def latent_attention(
    q_RAD: torch.Tensor,
    keys_PZ1SD: torch.Tensor,
    layer: int,
    scale: float,
    rows: StepRows,
    plan: AttentionPlan,
    out_RAL: torch.Tensor,
) -> None:
    """Write what each row and head takes of the latent parts to `out_RAL`.

    The rows' own keys must lie in the pages already, and `plan` must be of these rows. Memory that
    no row sees may hold anything. L and E must be as `check_sizes` wants them.
    """
    tiling = plan.shape.tiling
    _attend_latent[(tiling.programs,)](
        q_RAD,
        keys_PZ1SD,
        layer,
        scale * math.log2(math.e),
        rows,
        plan.buffers,
        plan.shape,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    add_parts(rows, plan, out_RAL)


@triton.jit(do_not_specialize=["layer"])
def _attend_latent(
    q_RAD: tl.tensor,
    keys_PZ1SD: tl.tensor,
    layer: tl.tensor,
    scale: tl.tensor,
    rows: StepRows,
    plan: PlanBuffers,
    shape: tl.constexpr,
) -> None:
    works = tl.load(plan.first_item_N1 + shape.sessions) * shape.head_tiles
    quarter: tl.constexpr = shape.value_dim // 4
    y = tl.arange(0, quarter)
    for work in range(tl.program_id(0), works, tl.num_programs(0)):
        tile = find_tile(rows, plan, work, shape)
        q_M = tile.row_M.to(tl.int64) * shape.heads + tile.head_M
        q = _load_keys(q_RAD, q_M, tile.row_M >= 0, shape)
        line_M = (work * shape.lines + tl.arange(0, shape.lines)).to(tl.int64)
        sums_MY = plan.sums_WHMV + line_M[:, None] * shape.value_dim + y[None, :]
        first_part, end_part = find_parts(tile, shape)
        for part in range(first_part, end_part):
            is_first = part == first_part
            top_M, mass_M, sums = _sum_part(q, keys_PZ1SD, layer, scale, tile, part, shape)
            kept_M, scale_M = keep_masses(plan, line_M, top_M, mass_M, is_first)
            for i in tl.static_range(4):
                keep_sums(sums_MY + i * quarter, sums[i], kept_M, scale_M, is_first)


@triton.jit
def _sum_part(
    q: tl.tuple,
    keys_PZ1SD: tl.tensor,
    layer: tl.tensor,
    scale: tl.tensor,
    tile: Tile,
    part: tl.tensor,
    shape: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tuple]:
    """Return maximum and mass of a part's keys, and the weighted sums of their latent quarters."""
    top_M = tl.full([shape.lines], LOWEST, tl.float32)
    mass_M = tl.full([shape.lines], 0.0, tl.float32)
    zeros_MY = tl.full([shape.lines, shape.value_dim // 4], 0.0, tl.float32)
    sums = (zeros_MY, zeros_MY, zeros_MY, zeros_MY)
    blocks, visits = find_blocks(tile, part, shape)
    for visit in tl.range(visits, disable_licm=True):
        position_S, slot_S, until_M = find_keys(tile, blocks, visit)
        at_S = rows_of_slots(slot_S, layer, tile.kv_head, shape)
        key = _load_keys(keys_PZ1SD, at_S, position_S <= tile.last, shape)
        scores_MS = tl.dot(q[4], tl.trans(key[4]), input_precision="ieee")
        for i in tl.static_range(4):
            scores_MS = tl.dot(q[i], tl.trans(key[i]), scores_MS, input_precision="ieee")
        weights_MS, kept_M, top_M, mass_M = weigh(
            scores_MS * scale, position_S, until_M, top_M, mass_M
        )
        weights_MS = weights_MS.to(key[0].dtype)
        sums = (
            _add(sums[0], kept_M, weights_MS, key[0]),
            _add(sums[1], kept_M, weights_MS, key[1]),
            _add(sums[2], kept_M, weights_MS, key[2]),
            _add(sums[3], kept_M, weights_MS, key[3]),
        )
    return top_M, mass_M, sums


@triton.jit
def _add(
    sum_MY: tl.tensor, kept_M: tl.tensor, weights_MS: tl.tensor, key_SY: tl.tensor
) -> tl.tensor:
    added_MY = tl.dot(weights_MS, key_SY, input_precision="ieee")
    return tl.fma(sum_MY, kept_M[:, None], added_MY)


@triton.jit
def _load_keys(
    table_XD: tl.tensor, row_I: tl.tensor, there_I: tl.tensor, shape: tl.constexpr
) -> tl.tuple:
    """Return the latent quarters and the rotated part of some rows; zeros for rows not there."""
    quarter: tl.constexpr = shape.value_dim // 4
    at_IY = table_XD + row_I[:, None] * shape.head_dim + tl.arange(0, quarter)[None, :]
    there_I1 = there_I[:, None]
    e = tl.arange(0, shape.head_dim - shape.value_dim)
    at_IE = table_XD + row_I[:, None] * shape.head_dim + (shape.value_dim + e)[None, :]
    return (
        tl.load(at_IY, mask=there_I1, other=0.0),
        tl.load(at_IY + quarter, mask=there_I1, other=0.0),
        tl.load(at_IY + 2 * quarter, mask=there_I1, other=0.0),
        tl.load(at_IY + 3 * quarter, mask=there_I1, other=0.0),
        tl.load(at_IE, mask=there_I1, other=0.0),
    )
