"""Norms and activations against the reference ops, rounding for rounding, and float64.

Legend: R rows, H hidden, F width of the feed-forward layer, V vocabulary.
"""

import pytest
import torch

from kernels import elementwise as reference
from kernels.gpu import elementwise as gpu
from tests.kernels.gpu.proofs.memory_guard import launch_guarded

EPS = 1e-5
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
every_shape = pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 33), (5, 576), (2, 7168)])


def normal(*shape, dtype):
    return torch.randn(*shape).to(dtype)


def unwritten(*shape, dtype):
    return torch.full(shape, torch.nan, dtype=dtype)


def assert_rounded_alike(y, expected):
    """The same roundings: a sum in another order moves one result in some hundred by one place."""
    eps = torch.finfo(y.dtype).eps
    torch.testing.assert_close(y, expected, rtol=2 * eps, atol=2**-20)
    if y.dtype == torch.bfloat16:
        assert (y != expected).float().mean() < 0.01


@every_dtype
@every_shape
def test_a_norm_is_the_reference_norm(dtype, rows, width):
    x_RH, weight_H = normal(rows, width, dtype=dtype), normal(width, dtype=dtype)
    out_RH = unwritten(rows, width, dtype=dtype)
    launch_guarded(lambda: gpu.rms_norm(x_RH, weight_H, EPS, out_RH), out_RH)
    assert_rounded_alike(out_RH, reference.rms_norm(x_RH, weight_H, EPS))
    x64_RH = x_RH.double()
    exact_RH = weight_H * x64_RH / ((x64_RH**2).mean(-1, keepdim=True) + EPS).sqrt()
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(out_RH.double(), exact_RH, rtol=2 * eps, atol=2**-20)


def test_the_other_order_of_rounding_is_told_apart():
    """Control: what follows the weight, rounded once, differs where one looks."""
    x_RH, weight_H = normal(64, 96, dtype=torch.bfloat16), normal(96, dtype=torch.bfloat16)
    out_RH = unwritten(64, 96, dtype=torch.bfloat16)
    gpu.rms_norm(x_RH, weight_H, EPS, out_RH)
    scale_R1 = torch.rsqrt((x_RH.float() ** 2).mean(-1, keepdim=True) + EPS)
    with pytest.raises(AssertionError):
        assert_rounded_alike(out_RH, (weight_H.float() * (x_RH.float() * scale_R1)).bfloat16())


@pytest.mark.parametrize("scale", [1e-30, 1e15])
def test_a_norm_of_extreme_rows_is_finite(scale):
    x_RH = (normal(4, 100, dtype=torch.float32) * scale).bfloat16()
    weight_H, out_RH = normal(100, dtype=torch.bfloat16), unwritten(4, 100, dtype=torch.bfloat16)
    gpu.rms_norm(x_RH, weight_H, EPS, out_RH)
    assert_rounded_alike(out_RH, reference.rms_norm(x_RH, weight_H, EPS))


@every_dtype
@every_shape
def test_a_sum_is_rounded_before_its_norm(dtype, rows, width):
    x_RH, h_RH = normal(rows, width, dtype=dtype), normal(rows, width, dtype=dtype)
    weight_H, out_RH = normal(width, dtype=dtype), unwritten(rows, width, dtype=dtype)
    expected_RH = h_RH + x_RH
    launch_guarded(lambda: gpu.add_rms_norm(x_RH, h_RH, weight_H, EPS, h_RH, out_RH), h_RH, out_RH)
    assert torch.equal(h_RH, expected_RH)
    assert_rounded_alike(out_RH, reference.rms_norm(expected_RH, weight_H, EPS))


@every_dtype
@every_shape
def test_parts_of_a_sum_are_added_and_rounded_once(dtype, rows, width):
    parts_PRH, h_RH = normal(3, rows, width, dtype=dtype), normal(rows, width, dtype=dtype)
    weight_H, out_RH = normal(width, dtype=dtype), unwritten(rows, width, dtype=dtype)
    first, second, third = parts_PRH.float()
    expected_RH = (h_RH + ((first + second) + third)).to(dtype)
    launch_guarded(
        lambda: gpu.add_rms_norm(parts_PRH, h_RH, weight_H, EPS, h_RH, out_RH), h_RH, out_RH
    )
    assert torch.equal(h_RH, expected_RH)
    assert_rounded_alike(out_RH, reference.rms_norm(expected_RH, weight_H, EPS))


def test_parts_of_a_sum_have_an_order():
    """1 is lost beside 2^30, and comes through after its opposite."""
    big, one, h_RH = 2.0**30, torch.ones(1, 128), torch.zeros(1, 128)
    for numbers, expected in ([big, 1.0, -big], 0.0), ([big, -big, 1.0], 1.0):
        parts_PRH = torch.stack([number * one for number in numbers])
        gpu.add_rms_norm(parts_PRH, h_RH, one[0], EPS, sum_RH := h_RH.clone(), h_RH.clone())
        assert sum_RH.eq(expected).all()


@every_dtype
@pytest.mark.parametrize("embedding_is_normed", [True, False])
@pytest.mark.parametrize("width", [33, 7168])
def test_a_pair_is_two_norms_the_embedding_first(dtype, embedding_is_normed, width):
    tokens_R = torch.tensor([6, 0, 6])
    embedding_VH, h_RH = normal(7, width, dtype=dtype), normal(3, width, dtype=dtype)
    norms = normal(2, width, dtype=dtype).unbind()
    pair_R2H = unwritten(3, 2 * width, dtype=dtype)
    embedding_norm_H = norms[0] if embedding_is_normed else None
    launch_guarded(
        lambda: gpu.norm_pair(
            tokens_R, embedding_VH, embedding_norm_H, h_RH, norms[1], EPS, pair_R2H
        ),
        pair_R2H,
    )
    x_RH = embedding_VH[tokens_R]
    first_RH = reference.rms_norm(x_RH, norms[0], EPS) if embedding_is_normed else x_RH
    second_RH = reference.rms_norm(h_RH, norms[1], EPS)
    assert_rounded_alike(pair_R2H, torch.cat((first_RH, second_RH), dim=-1))


@every_dtype
@pytest.mark.parametrize("width", [1, 33, 2048, 18432])
def test_an_activation_gates(dtype, width):
    both_R2F = 3 * normal(3, 2 * width, dtype=dtype)
    gate_RF, up_RF = both_R2F.chunk(2, dim=1)
    out_RF = unwritten(3, width, dtype=dtype)
    launch_guarded(lambda: gpu.silu_mul(gate_RF, up_RF, out_RF), out_RF)
    assert_rounded_alike(out_RF, reference.silu_mul(gate_RF, up_RF))


def test_an_activation_of_extreme_gates_is_a_gate_still():
    gate_1F = torch.tensor([[-1e30, -200.0, 0.0, 200.0, 1e30]])
    out_1F = unwritten(1, 5, dtype=torch.float32)
    gpu.silu_mul(gate_1F, torch.ones_like(gate_1F), out_1F)
    assert torch.equal(out_1F, gate_1F.clamp(min=0))


@every_dtype
def test_rows_do_not_feel_their_neighbours(dtype):
    """A row alone, or between rows of a wider buffer, has the same bits."""
    width = 576
    wide_RX, h_RH = normal(9, 2 * width, dtype=dtype), normal(9, width, dtype=dtype)
    x_RH, weight_H = wide_RX[:, width:], normal(width, dtype=dtype)
    tokens_R, embedding_VH = torch.arange(9) % 4, normal(4, width, dtype=dtype)

    def results(rows):
        outs = [unwritten(len(h_RH[rows]), n, dtype=dtype) for n in (width,) * 4 + (2 * width,)]
        gpu.rms_norm(x_RH[rows], weight_H, EPS, outs[0])
        gpu.add_rms_norm(x_RH[rows], h_RH[rows], weight_H, EPS, outs[1], outs[2])
        gpu.silu_mul(x_RH[rows], h_RH[rows], outs[3])
        gpu.norm_pair(tokens_R[rows], embedding_VH, weight_H, h_RH[rows], weight_H, EPS, outs[4])
        return outs

    together = results(slice(None))
    for rows in (slice(0, 1), slice(4, 5), slice(3, 9)):
        alone = results(rows)
        assert all(torch.equal(a[rows], b) for a, b in zip(together, alone, strict=True))


def test_heads_of_rows_in_a_wider_buffer_are_normed_one_by_one():
    buffer_RN, weight_D = normal(3, 7 * 16, dtype=torch.bfloat16), normal(16, dtype=torch.bfloat16)
    heads_RAD, expected_RN = buffer_RN.unflatten(1, (7, 16))[:, 2:5], buffer_RN.clone()
    expected_RN[:, 32:80] = reference.rms_norm(heads_RAD, weight_D, EPS).flatten(1)
    launch_guarded(lambda: gpu.rms_norm(heads_RAD, weight_D, EPS, heads_RAD), buffer_RN)
    assert_rounded_alike(buffer_RN, expected_RN)
    assert torch.equal(buffer_RN[:, :32], expected_RN[:, :32])
    assert torch.equal(buffer_RN[:, 80:], expected_RN[:, 80:])
