"""Norms, activation, rotation, moves and taps.

Legend: see kernels/gpu/elementwise.py, rotary.py, kv_moves.py, tap_gather.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from benchmarks.gpu_check.case import (
    ROUNDED,
    Case,
    Sizes,
    bytes_of,
    excess_of,
    excess_of_equal,
    normal,
)
from kernels.gpu.elementwise import add_rms_norm, norm_pair, rms_norm, silu_mul
from kernels.gpu.kv_moves import move_accepted
from kernels.gpu.rotary import rotate_and_store
from kernels.gpu.tap_gather import gather_taps, gather_taps_fp8
from kernels.kv_pages import PAGE_LEN

_EPS = 1e-6
_TAPS = 3
_HEAD_DIM = 64
_TWICE_ROUNDED = (1 + ROUNDED) ** 2 - 1


def cases(sizes: Sizes, device: torch.device) -> Iterator[Case]:
    """Yield a case a kernel."""
    for make in (_norm, _sum_and_norm, _pair, _activation, _rotation, _moves, _taps, _taps_fp8):
        yield make(sizes, device)


def _exact_norm(x_RH: torch.Tensor, weight_H: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x_RH.double(), weight_H.shape, weight_H.double(), _EPS)


def _norm_excess(found_RH: torch.Tensor, exact_RH: torch.Tensor) -> float:
    """Of two roundings: before the weight and after it."""
    return excess_of(found_RH, exact_RH, _TWICE_ROUNDED * exact_RH.abs() + 2**-30)


def _norm(sizes: Sizes, device: torch.device) -> Case:
    x_RH, weight_H = normal(sizes.rows, sizes.hidden, device=device), _weight(sizes.hidden, device)
    out_RH = torch.empty_like(x_RH)
    return Case(
        "rms_norm",
        lambda: rms_norm(x_RH, weight_H, _EPS, out_RH),
        (out_RH,),
        lambda: _norm_excess(out_RH, _exact_norm(x_RH, weight_H)),
        bytes_of(x_RH, weight_H, out_RH),
    )


def _sum_and_norm(sizes: Sizes, device: torch.device) -> Case:
    x_RH, h_RH = (normal(sizes.rows, sizes.hidden, device=device) for _ in range(2))
    weight_H = _weight(sizes.hidden, device)
    sum_RH, out_RH = torch.empty_like(h_RH), torch.empty_like(h_RH)

    def excess() -> float:
        wrong_sum = excess_of_equal(sum_RH, x_RH + h_RH)
        return max(wrong_sum, _norm_excess(out_RH, _exact_norm(x_RH + h_RH, weight_H)))

    return Case(
        "add_rms_norm",
        lambda: add_rms_norm(x_RH, h_RH, weight_H, _EPS, sum_RH, out_RH),
        (sum_RH, out_RH),
        excess,
        bytes_of(x_RH, h_RH, weight_H, sum_RH, out_RH),
    )


def _pair(sizes: Sizes, device: torch.device) -> Case:
    tokens_R = torch.randint(sizes.draft_vocabulary, (sizes.rows,), device=device)
    embedding_VH = normal(sizes.draft_vocabulary, sizes.hidden, device=device)
    h_RH = normal(sizes.rows, sizes.hidden, device=device)
    norms = _weight(sizes.hidden, device), _weight(sizes.hidden, device)
    pair_R2H = torch.empty(sizes.rows, 2 * sizes.hidden, dtype=torch.bfloat16, device=device)

    def excess() -> float:
        halves = zip((embedding_VH[tokens_R], h_RH), norms, strict=True)
        exact_R2H = torch.cat([_exact_norm(x_RH, norm_H) for x_RH, norm_H in halves], dim=1)
        return _norm_excess(pair_R2H, exact_R2H)

    return Case(
        "norm_pair",
        lambda: norm_pair(tokens_R, embedding_VH, norms[0], h_RH, norms[1], _EPS, pair_R2H),
        (pair_R2H,),
        excess,
        2 * bytes_of(pair_R2H) + bytes_of(*norms),
    )


def _activation(sizes: Sizes, device: torch.device) -> Case:
    gate_RF, up_RF = (normal(sizes.rows, sizes.inner, device=device) for _ in range(2))
    out_RF = torch.empty_like(up_RF)

    def excess() -> float:
        exact_RF = F.silu(gate_RF.double()) * up_RF.double()
        return excess_of(out_RF, exact_RF, _TWICE_ROUNDED * exact_RF.abs() + 2**-30)

    return Case(
        "silu_mul",
        lambda: silu_mul(gate_RF, up_RF, out_RF),
        (out_RF,),
        excess,
        bytes_of(gate_RF, up_RF, out_RF),
    )


def _rotation(sizes: Sizes, device: torch.device) -> Case:
    """Eight heads and one key-value head, each row in a page of its own."""
    rows = sizes.rows
    q_RAD, k_RCD, v_RCD = (normal(rows, n, _HEAD_DIM, device=device) for n in (8, 1, 1))
    angle_PD = torch.rand(rows, _HEAD_DIM // 2, device=device).repeat(1, 2)
    angles = angle_PD.cos().bfloat16(), angle_PD.sin().bfloat16()
    positions_R = torch.arange(rows, dtype=torch.int32, device=device)
    slots_R = torch.arange(rows, device=device) * PAGE_LEN + 5
    keys_PLCSD, values_PLCSD = torch.zeros(
        2, rows, 1, 1, PAGE_LEN, _HEAD_DIM, dtype=torch.bfloat16, device=device
    )
    out_RAD = torch.empty_like(q_RAD)

    def rotated(x_RND: torch.Tensor) -> torch.Tensor:
        cos_R1D, sin_R1D = (table[positions_R][:, None] for table in angles)
        first, second = x_RND.chunk(2, dim=-1)
        return x_RND * cos_R1D + torch.cat((-second, first), dim=-1) * sin_R1D

    def excess() -> float:
        stored = [part[:, 0, :, 5] for part in (keys_PLCSD, values_PLCSD)]
        found = (out_RAD, *stored)
        expected = (rotated(q_RAD), rotated(k_RCD), v_RCD)
        return max(excess_of_equal(*both) for both in zip(found, expected, strict=True))

    return Case(
        "rotate_and_store",
        lambda: rotate_and_store(
            q_RAD,
            k_RCD,
            v_RCD,
            angles,
            positions_R,
            slots_R,
            keys_PLCSD,
            values_PLCSD,
            0,
            out_RAD,
        ),
        (keys_PLCSD, values_PLCSD, out_RAD),
        excess,
        2 * bytes_of(q_RAD, k_RCD, v_RCD),
    )


def _moves(sizes: Sizes, device: torch.device) -> Case:
    """Every second node of a tree is accepted, in all layers of a latent cache."""
    keys_PLCSD = normal(2, sizes.layers, 1, 64, 576, device=device)
    original = keys_PLCSD.clone()
    pages_NX = torch.tensor([[1, 0]], dtype=torch.int32, device=device)
    prefix_N = torch.tensor([60], dtype=torch.int32, device=device)
    path_NJ = torch.tensor([[0, 2, 4, 6]], dtype=torch.int32, device=device)
    length_N = torch.tensor([4], dtype=torch.int32, device=device)

    def launch() -> None:
        keys_PLCSD.copy_(original)
        move_accepted(pages_NX, prefix_N, path_NJ, length_N, keys_PLCSD, None)

    def excess() -> float:
        expected = original.clone()
        for depth, node in enumerate((0, 2, 4, 6)):
            to, source = 60 + depth, 60 + node
            expected[1 - to // 64, :, :, to % 64] = original[1 - source // 64, :, :, source % 64]
        return excess_of_equal(keys_PLCSD, expected)

    moved_bytes = 2 * 4 * bytes_of(original[0, :, :, 0])
    num_bytes = 2 * bytes_of(original) + moved_bytes
    return Case("move_accepted", launch, (), excess, num_bytes)


def _taps(sizes: Sizes, device: torch.device) -> Case:
    taps_TRH, rows_M = _chosen_taps(sizes, device)
    wire_MTH = torch.empty(len(rows_M), *taps_TRH.shape[::2], dtype=torch.bfloat16, device=device)
    return Case(
        "gather_taps",
        lambda: gather_taps(taps_TRH, rows_M, wire_MTH),
        (wire_MTH,),
        lambda: excess_of_equal(wire_MTH, taps_TRH[:, rows_M].transpose(0, 1)),
        2 * bytes_of(wire_MTH),
    )


def _taps_fp8(sizes: Sizes, device: torch.device) -> Case:
    taps_TRH, rows_M = _chosen_taps(sizes, device)
    shape = len(rows_M), *taps_TRH.shape[::2]
    wire_MTH = torch.empty(shape, dtype=torch.float8_e4m3fn, device=device)
    scales_MT = torch.empty(shape[:2], device=device)

    def excess() -> float:
        """Four bits are kept: half of the last is 1/16 of a number, or of the smallest normal."""
        exact_MTH = taps_TRH[:, rows_M].transpose(0, 1).double()
        found_MTH = wire_MTH.double() * scales_MT[..., None].double()
        allowed_MTH = exact_MTH.abs() / 16 + 2**-9 * scales_MT[..., None].double()
        return excess_of(found_MTH, exact_MTH, allowed_MTH * (1 + 2**-20))

    return Case(
        "gather_taps_fp8",
        lambda: gather_taps_fp8(taps_TRH, rows_M, wire_MTH, scales_MT),
        (wire_MTH, scales_MT),
        excess,
        3 * bytes_of(wire_MTH) + bytes_of(scales_MT),
    )


def _chosen_taps(sizes: Sizes, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    rows_M = torch.arange(sizes.rows - 1, -1, -1, dtype=torch.int32, device=device)
    return normal(_TAPS, sizes.rows, sizes.hidden, device=device), rows_M


def _weight(width: int, device: torch.device) -> torch.Tensor:
    return 1 + 0.1 * normal(width, device=device)
