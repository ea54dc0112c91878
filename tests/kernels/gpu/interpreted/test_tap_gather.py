"""Taps of chosen rows as they travel: exact in bfloat16, nearest in fp8.

Legend: T taps, R rows, H hidden, M chosen rows.
"""

import pytest
import torch

from kernels.gpu.tap_gather import gather_taps, gather_taps_fp8
from tests.kernels.gpu.proofs.memory_guard import launch_guarded

every_shape = pytest.mark.parametrize(("taps", "width"), [(1, 1), (3, 33), (3, 7168), (2, 1500)])
ROWS = 9
CHOSEN = torch.tensor([8, 0, 3, 3, 0], dtype=torch.int32)


def made_taps(taps, width):
    """A residual stream: a few values a hundred times larger than the others."""
    taps_TRH = torch.randn(taps, ROWS, width)
    taps_TRH[..., ::97] *= 100
    return taps_TRH.bfloat16()


def chosen(taps_TRH):
    return taps_TRH[:, CHOSEN.long()].transpose(0, 1)


@every_shape
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_rows_are_copied_as_they_are(taps, width, dtype):
    taps_TRH = made_taps(taps, width).to(dtype)
    wire_MTH = torch.full((len(CHOSEN), taps, width), torch.nan, dtype=dtype)
    launch_guarded(lambda: gather_taps(taps_TRH, CHOSEN, wire_MTH), wire_MTH)
    assert torch.equal(wire_MTH, chosen(taps_TRH))


def encoded(taps_TRH, rows_M=CHOSEN):
    shape = (len(rows_M), len(taps_TRH), taps_TRH.shape[2])
    wire_MTH = torch.zeros(shape, dtype=torch.float8_e4m3fn)
    scales_MT = torch.full(shape[:2], torch.nan)
    launch_guarded(
        lambda: gather_taps_fp8(taps_TRH, rows_M, wire_MTH, scales_MT), wire_MTH, scales_MT
    )
    return wire_MTH, scales_MT


@every_shape
def test_fp8_is_the_nearest_to_a_rows_own_scale(taps, width):
    taps_TRH = made_taps(taps, width)
    wire_MTH, scales_MT = encoded(taps_TRH)
    exact_MTH = chosen(taps_TRH).float()
    assert torch.equal(scales_MT, exact_MTH.abs().amax(-1) / 448)
    scaled_MTH = (exact_MTH / scales_MT[..., None]).clamp(-448, 448)
    assert torch.equal(wire_MTH.float(), scaled_MTH.to(torch.float8_e4m3fn).float())
    restored_MTH = wire_MTH.float() * scales_MT[..., None]
    torch.testing.assert_close(
        restored_MTH, exact_MTH, rtol=2**-4, atol=float(exact_MTH.abs().max()) / 448 / 2**9
    )


def test_a_row_of_zeros_stays_one():
    wire_MTH, scales_MT = encoded(torch.zeros(2, ROWS, 40, dtype=torch.bfloat16))
    assert not wire_MTH.float().any()
    assert (scales_MT > 0).all()


@pytest.mark.parametrize("scale", [1e-37, 1e35])
def test_extreme_rows_are_scaled_to_fit(scale):
    taps_TRH = (made_taps(2, 40).float() * scale).bfloat16()
    wire_MTH, scales_MT = encoded(taps_TRH)
    assert wire_MTH.float().isfinite().all()
    assert scales_MT.isfinite().all()


def test_a_row_does_not_feel_the_others():
    taps_TRH = made_taps(3, 500)
    wire_MTH, scales_MT = encoded(taps_TRH)
    for m, row in enumerate(CHOSEN.tolist()):
        alone_TRH = taps_TRH[:, row : row + 1].contiguous()
        one_1TH, scale_1T = encoded(alone_TRH, torch.zeros(1, dtype=torch.int32))
        assert torch.equal(one_1TH.float()[0], wire_MTH.float()[m])
        assert torch.equal(scale_1T[0], scales_MT[m])
