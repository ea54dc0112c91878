"""The taps of chosen rows, side by side as they travel: one launch, bfloat16 or fp8.

    wire_m = [tap_1 of row m, tap_2 of row m, ...]
    fp8:  wire = round(tap / scale),   scale = max |tap| / 448, one for a row of each tap

A row is scaled by its own largest value, so its bits are its own. fp8 here is e4m3: 448 is the
largest it holds, and a value 28,000 times smaller than the largest still has all of its four bits.

Legend: T taps, R rows, H hidden, M chosen rows.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

_LARGEST = tl.constexpr(448.0)
_WARPS = {1024: 4, 2048: 4, 4096: 8, 8192: 8, 16384: 16, 32768: 16}


def gather_taps(taps_TRH: torch.Tensor, rows_M: torch.Tensor, wire_MTH: torch.Tensor) -> None:
    """Copy the taps of some rows, as they are. Rows may come in any order, and more than once."""
    _launch(taps_TRH, rows_M, wire_MTH, None)


def gather_taps_fp8(
    taps_TRH: torch.Tensor, rows_M: torch.Tensor, wire_MTH: torch.Tensor, scales_MT: torch.Tensor
) -> None:
    """Copy the taps of some rows as float8_e4m3fn, and what each is to be multiplied by."""
    _launch(taps_TRH, rows_M, wire_MTH, scales_MT)


def _launch(
    taps_TRH: torch.Tensor,
    rows_M: torch.Tensor,
    wire_MTH: torch.Tensor,
    scales_MT: torch.Tensor | None,
) -> None:
    taps, _, width = taps_TRH.shape
    tile = max(1024, triton.next_power_of_2(width))
    _gather_taps[(len(rows_M), taps)](
        taps_TRH,
        taps_TRH.stride(0),
        taps_TRH.stride(1),
        rows_M,
        wire_MTH,
        scales_MT,
        width,
        tile,
        num_warps=_WARPS[tile],
    )


@triton.jit
@no_type_check
def _gather_taps(
    taps_TRH,
    tap_stride,
    row_stride,
    rows_M,
    wire_MTH,
    scales_MT,
    width: tl.constexpr,
    tile: tl.constexpr,
):
    m, t, at = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, tile)
    row = tl.load(rows_M + m).to(tl.int64)
    in_wire = m * tl.num_programs(1) + t
    tap = taps_TRH + t.to(tl.int64) * tap_stride + row * row_stride
    x = tl.load(tap + at, mask=at < width, other=0.0)
    if scales_MT is not None:
        x = x.to(tl.float32)
        # The scale of a row of zeros is not 0: they are divided by it.
        scale = tl.maximum(tl.max(tl.abs(x), axis=0) / _LARGEST, 1e-30)
        tl.store(scales_MT + in_wire, scale)
        # Its rounding may let the largest pass 448, which fp8 would take for no number.
        x = tl.minimum(tl.maximum(x / scale, -_LARGEST), _LARGEST)
    wire = wire_MTH + in_wire * width + at
    tl.store(wire, x.to(wire_MTH.dtype.element_ty), mask=at < width)
