"""What rows sum over parts of their keys, and its sum: softmax in any number of pieces.

    m = max(m_a, m_b),   mass = mass_a 2^(m_a - m) + mass_b 2^(m_b - m),   sum likewise

Parts are added in order, from the first: by the program that does all parts of a tile, or at the
end if several did. Both do the same operations in the same order, so the bits are the same. A part
in which a row sees nothing adds an exact zero.

Legend: see `attention_shape`; A query heads.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.gpu.attention_shape import AttentionPlan, PlanBuffers, StepRows

LOWEST = tl.constexpr(-1e38)
"""The maximum of no scores. It is finite, so that the difference of two is."""


def add_parts(rows: StepRows, plan: AttentionPlan, out_RAV: torch.Tensor) -> None:
    """Write sum / mass of all parts to `out_RAV`, and zeros to rows that are padding."""
    _add_parts[out_RAV.shape[:2]](rows, plan.buffers, out_RAV, plan.shape, num_warps=1)


@triton.jit
def keep_masses(
    plan: PlanBuffers, line_M: tl.tensor, top_M: tl.tensor, mass_M: tl.tensor, is_first: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    """Store maximum and mass of a part, or of it and those that this program stored before.

    Returns what the earlier sums and those of the part are multiplied by.
    """
    before_M = tl.load(plan.maxima_WHM + line_M)
    before_mass_M = tl.load(plan.masses_WHM + line_M)
    before_M = tl.where(is_first, LOWEST, before_M)
    before_mass_M = tl.where(is_first, 0.0, before_mass_M)
    top_M, mass_M, kept_M, scale_M = add_up(before_M, before_mass_M, top_M, mass_M)
    # Several threads hold a line: all have read it before one writes, and before others read again.
    tl.debug_barrier()
    tl.store(plan.maxima_WHM + line_M, top_M)
    tl.store(plan.masses_WHM + line_M, mass_M)
    tl.debug_barrier()
    return kept_M, scale_M


@triton.jit
def keep_sums(
    sums_MV: tl.tensor,
    sum_MV: tl.tensor,
    kept_M: tl.tensor,
    scale_M: tl.tensor,
    is_first: tl.tensor,
) -> None:
    """Store the sums of a part where `sums_MV` points to, or add them to what is there."""
    if not is_first:
        before_MV = tl.load(sums_MV)
        sum_MV = tl.fma(before_MV, kept_M[:, None], sum_MV * scale_M[:, None])
        tl.debug_barrier()
    tl.store(sums_MV, sum_MV)
    tl.debug_barrier()


@triton.jit
def add_up(
    max_a: tl.tensor, mass_a: tl.tensor, max_b: tl.tensor, mass_b: tl.tensor
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Return maximum and mass of both, and what the sums of a and b are multiplied by."""
    top = tl.maximum(max_a, max_b)
    scale_a, scale_b = tl.exp2(max_a - top), tl.exp2(max_b - top)
    # Fused by hand: which of two products is fused with their sum is not left to the compiler.
    return top, tl.fma(mass_a, scale_a, mass_b * scale_b), scale_a, scale_b


@triton.jit
def _add_parts(rows: StepRows, plan: PlanBuffers, out_RAV: tl.tensor, shape: tl.constexpr) -> None:
    row, head = tl.program_id(0), tl.program_id(1)
    v_V = tl.arange(0, shape.padded_value)
    sum_V = tl.full([shape.padded_value], 0.0, tl.float32)
    top, mass = tl.full([], LOWEST, tl.float32), tl.full([], 0.0, tl.float32)
    if row < tl.load(rows.first_row_N1 + shape.sessions):
        first_line, parts = _find_line(rows, plan, row, head, shape)
        for part in range(parts):
            line = first_line + part * (shape.head_tiles * shape.lines)
            max_b, mass_b = tl.load(plan.maxima_WHM + line), tl.load(plan.masses_WHM + line)
            top, mass, kept, scale = add_up(top, mass, max_b, mass_b)
            part_V = tl.load(plan.sums_WHMV + line * shape.padded_value + v_V)
            sum_V = tl.fma(sum_V, kept, part_V * scale)
    # Where a part was not added, a zero may have a sign: this sum leaves none.
    out_V = sum_V / tl.where(mass == 0, 1.0, mass) + 0.0
    at_V = out_RAV + (row.to(tl.int64) * shape.heads + head) * shape.value_dim + v_V
    tl.store(at_V, out_V.to(out_RAV.dtype.element_ty), mask=v_V < shape.value_dim)


@triton.jit
def _find_line(
    rows: StepRows, plan: PlanBuffers, row: tl.tensor, head: tl.tensor, shape: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Return the line of a row and head in its first part, and how many parts the row sees."""
    session = tl.load(rows.session_R + row)
    within = row - tl.load(rows.first_row_N1 + session)
    parts = tl.load(plan.parts_N + session)
    item = tl.load(plan.first_item_N1 + session) + within // shape.tile_rows * parts
    in_group = head % shape.group
    head_tile = head // shape.group * shape.tiles_of_group + in_group // shape.tile_heads
    line = within % shape.tile_rows * shape.tile_heads + in_group % shape.tile_heads
    seen = tl.load(rows.positions_R + row) // shape.part_len + 1
    first_line = (item.to(tl.int64) * shape.head_tiles + head_tile) * shape.lines + line
    return first_line, tl.where(parts == 1, 1, seen)
