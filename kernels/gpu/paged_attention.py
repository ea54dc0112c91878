"""Attention of all rows of a step over their keys in pages, any number of heads a key-value head.

    out = sum_s 2^(x_s - m) v_s / sum_s 2^(x_s - m),   x_s = scale log2(e) q . k_s

over the keys a row sees: block after block of 64 absolute positions, parts of 1,024 added in order.
Scores and sums are float32. Weights are rounded to the dtype of the values they are multiplied by.

Legend: see `attention_shape` and `key_blocks`; A query heads, C key-value heads, D head size, P
pages, L layers.
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

PAGED_TILINGS = {
    9: Tiling(lines=64, warps=8, stages=3, programs=132),
    10: Tiling(lines=64, warps=8, stages=3, programs=148),
    12: Tiling(lines=32, warps=8, stages=2, programs=188),
}
"""By major compute capability: H100 and H200, B200, RTX PRO 6000."""
_LEAST_HEAD, _LARGEST_HEAD = 16, 256
"""The inputs of the smallest product, and what shared memory has room for on every chip."""


def check_head_dim(head_dim: int) -> None:
    """Raise ValueError for a head size that tiles cannot have."""
    if not _LEAST_HEAD <= head_dim <= _LARGEST_HEAD:
        raise ValueError(
            f"head_dim is {head_dim}, kernels for GPUs take {_LEAST_HEAD} to {_LARGEST_HEAD}"
        )


def paged_attention(
    q_RAD: torch.Tensor,
    keys_PLCSD: torch.Tensor,
    values_PLCSD: torch.Tensor,
    layer: int,
    scale: float,
    rows: StepRows,
    plan: AttentionPlan,
    out_RAD: torch.Tensor,
) -> None:
    """Write the attention of each row to `out_RAD`. Its own keys must lie in the pages already.

    `plan` must be of these rows. Memory that no row sees may hold anything.
    """
    tiling = plan.shape.tiling
    _attend[(tiling.programs,)](
        q_RAD,
        keys_PLCSD,
        values_PLCSD,
        layer,
        scale * math.log2(math.e),
        rows,
        plan.buffers,
        plan.shape,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    add_parts(rows, plan, out_RAD)


@triton.jit(do_not_specialize=["layer"])
def _attend(
    q_RAD: tl.tensor,
    keys_PLCSD: tl.tensor,
    values_PLCSD: tl.tensor,
    layer: tl.tensor,
    scale: tl.tensor,
    rows: StepRows,
    plan: PlanBuffers,
    shape: tl.constexpr,
) -> None:
    works = tl.load(plan.first_item_N1 + shape.sessions) * shape.head_tiles
    d = tl.arange(0, shape.padded_head)
    for work in range(tl.program_id(0), works, tl.num_programs(0)):
        tile = find_tile(rows, plan, work, shape)
        at_M = tile.row_M.to(tl.int64) * shape.heads + tile.head_M
        q_MD = _load(q_RAD, at_M, tile.row_M >= 0, d, shape)
        line_M = (work * shape.lines + tl.arange(0, shape.lines)).to(tl.int64)
        sums_MD = plan.sums_WHMV + line_M[:, None] * shape.padded_value + d[None, :]
        first_part, end_part = find_parts(tile, shape)
        for part in range(first_part, end_part):
            is_first = part == first_part
            top_M, mass_M, sum_MD = _sum_part(
                q_MD, keys_PLCSD, values_PLCSD, layer, scale, tile, part, d, shape
            )
            kept_M, scale_M = keep_masses(plan, line_M, top_M, mass_M, is_first)
            keep_sums(sums_MD, sum_MD, kept_M, scale_M, is_first)


@triton.jit
def _sum_part(
    q_MD: tl.tensor,
    keys_PLCSD: tl.tensor,
    values_PLCSD: tl.tensor,
    layer: tl.tensor,
    scale: tl.tensor,
    tile: Tile,
    part: tl.tensor,
    d: tl.tensor,
    shape: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return maximum, mass and weighted sum of a part's keys."""
    top_M = tl.full([shape.lines], LOWEST, tl.float32)
    mass_M = tl.full([shape.lines], 0.0, tl.float32)
    sum_MD = tl.full([shape.lines, shape.padded_head], 0.0, tl.float32)
    blocks, visits = find_blocks(tile, part, shape)
    for visit in range(visits):
        position_S, slot_S, until_M = find_keys(tile, blocks, visit)
        at_S = rows_of_slots(slot_S, layer, tile.kv_head, shape)
        k_SD = _load(keys_PLCSD, at_S, position_S <= tile.last, d, shape)
        v_SD = _load(values_PLCSD, at_S, position_S <= tile.last, d, shape)
        scores_MS = tl.dot(q_MD, tl.trans(k_SD), input_precision="ieee") * scale
        weights_MS, kept_M, top_M, mass_M = weigh(scores_MS, position_S, until_M, top_M, mass_M)
        added_MD = tl.dot(weights_MS.to(v_SD.dtype), v_SD, input_precision="ieee")
        sum_MD = tl.fma(sum_MD, kept_M[:, None], added_MD)
    return top_M, mass_M, sum_MD


@triton.jit
def _load(
    table_XD: tl.tensor, row_I: tl.tensor, there_I: tl.tensor, d: tl.tensor, shape: tl.constexpr
) -> tl.tensor:
    """Return some rows of head size; zeros for those that are not there."""
    there_ID = there_I[:, None] & (d < shape.head_dim)[None, :]
    return tl.load(table_XD + row_I[:, None] * shape.head_dim + d[None, :], mask=there_ID, other=0)
