"""The small ops against their formulas in float64, and the bits of an element wherever it lies.

Legend: R rows, H hidden, A heads, D head size, F width of the feed-forward layer.
"""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.elementwise import rms_norm, rotate, silu_mul
from kernels.rotary import Rope

DTYPES = [torch.float32, torch.bfloat16]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_width = pytest.mark.parametrize("width", [1, 33, 576, 1001])
every_head = pytest.mark.parametrize("head_dim", [2, 64, 80])
seeds = st.integers(0, 2**32)


def normal(*shape, seed, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close_to_exact(y, exact):
    """Two roundings of the type and some of float32."""
    eps = torch.finfo(y.dtype).eps
    torch.testing.assert_close(y.double(), exact, rtol=2 * eps, atol=8 * 2**-24)


@every_dtype
@every_width
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1, 1e15])
def test_rms_norm_divides_by_the_root_of_the_mean_square(dtype, width, scale):
    x_RH, weight_H = normal(9, width, seed=1, dtype=dtype), normal(width, seed=2, dtype=dtype)
    x_RH *= scale
    x64_RH = x_RH.double()
    mean_R1 = (x64_RH**2).mean(-1, keepdim=True)
    exact_RH = weight_H.double() * x64_RH / (mean_R1 + 1e-5).sqrt()
    assert_close_to_exact(rms_norm(x_RH, weight_H, 1e-5), exact_RH)


def test_rms_norm_rounds_before_the_weight_as_it_was_trained():
    """The other order differs somewhere in bfloat16."""
    x_RH, weight_H = (normal(*shape, seed=1, dtype=torch.bfloat16) for shape in [(64, 96), (96,)])
    x32_RH = x_RH.float()
    normed_RH = x32_RH * torch.rsqrt((x32_RH * x32_RH).mean(-1, keepdim=True) + 1e-5)
    y_RH = rms_norm(x_RH, weight_H, 1e-5)
    assert torch.equal(y_RH, weight_H * normed_RH.bfloat16())
    assert not torch.equal(y_RH, (weight_H.float() * normed_RH).bfloat16())


@every_dtype
@every_width
def test_silu_mul_gates(dtype, width):
    gate_RF, up_RF = (3 * normal(9, width, seed=seed, dtype=dtype) for seed in (1, 2))
    exact_RF = gate_RF.double() * torch.sigmoid(gate_RF.double()) * up_RF.double()
    assert_close_to_exact(silu_mul(gate_RF, up_RF), exact_RF)


@every_dtype
def test_silu_mul_of_extreme_gates_is_a_gate_still(dtype):
    gate_F = torch.tensor([-1e30, -200.0, -0.0, 0.0, 200.0, 1e30]).to(dtype)
    expected_F = torch.where(gate_F > 0, gate_F, torch.zeros_like(gate_F))
    torch.testing.assert_close(silu_mul(gate_F, torch.ones_like(gate_F)), expected_F)


def tables(head_dim, dtype):
    return Rope(head_dim, 10000.0, {}, 2048).tables(200, dtype)


@every_dtype
@every_head
def test_rotate_turns_pairs_of_the_two_halves(dtype, head_dim):
    """Dimensions i and i + D/2 are one complex number, turned by the angle of its frequency."""
    x_RAD, positions_R = normal(9, 3, head_dim, seed=1, dtype=dtype), torch.arange(100, 109)
    cos_PD, sin_PD = tables(head_dim, dtype)
    turned_RAD = rotate(x_RAD, cos_PD[positions_R], sin_PD[positions_R])
    turns_RF = torch.complex(cos_PD.double(), sin_PD.double())[positions_R, : head_dim // 2]
    exact_RAF = torch.complex(*x_RAD.double().chunk(2, dim=-1)) * turns_RF[:, None]
    exact_RAD = torch.cat((exact_RAF.real, exact_RAF.imag), dim=-1)
    # Each product is rounded before their sum.
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(turned_RAD.double(), exact_RAD, rtol=eps, atol=4 * eps)


@every_head
def test_scores_of_rotated_rows_depend_on_their_distance_alone(head_dim):
    q_1AD, k_1AD = (normal(1, 1, head_dim, seed=seed) for seed in (1, 2))
    cos_PD, sin_PD = tables(head_dim, torch.float32)
    turned = [
        [rotate(x_1AD, cos_PD[p][None], sin_PD[p][None]) for p in range(0, 200, 7)]
        for x_1AD in (q_1AD, k_1AD)
    ]
    scores = torch.stack([(q * k).sum() for q, k in zip(turned[0][4:], turned[1], strict=False)])
    torch.testing.assert_close(scores, scores[:1].expand_as(scores), rtol=0, atol=1e-3)
    assert not torch.allclose(scores[0], (turned[0][0] * turned[1][0]).sum(), atol=1e-3)


cuts = st.tuples(st.integers(0, 40), st.integers(1, 41))


@every_dtype
@every_width
@settings(max_examples=15)
@given(seed=seeds, cut=cuts, skipped=st.integers(0, 7))
def test_a_row_is_normed_to_the_same_bits_wherever_it_lies(dtype, width, seed, cut, skipped):
    weight_H = normal(width, seed=3, dtype=dtype)
    wider = normal(82, width + skipped, seed=seed, dtype=dtype)
    x_RH, rows = wider[:, skipped:], slice(cut[0], sum(cut))
    assert torch.equal(rms_norm(x_RH[rows], weight_H, 1e-5), rms_norm(x_RH, weight_H, 1e-5)[rows])
    compact_RH = x_RH[rows].contiguous()
    assert torch.equal(rms_norm(x_RH[rows], weight_H, 1e-5), rms_norm(compact_RH, weight_H, 1e-5))


@every_dtype
@every_width
@settings(max_examples=15)
@given(seed=seeds, cut=cuts, skipped=st.integers(0, 7))
def test_an_element_is_gated_to_the_same_bits_wherever_it_lies(dtype, width, seed, cut, skipped):
    wider = 3 * normal(82, 2 * (width + skipped), seed=seed, dtype=dtype)
    gate_RF, up_RF = (half[:, skipped:] for half in wider.chunk(2, dim=-1))
    rows = slice(cut[0], sum(cut))
    y_RF = silu_mul(gate_RF, up_RF)
    assert torch.equal(silu_mul(gate_RF[rows], up_RF[rows]), y_RF[rows])
    assert torch.equal(silu_mul(gate_RF.contiguous(), up_RF.contiguous()), y_RF)
    one_by_one = [silu_mul(gate, up) for gate, up in zip(gate_RF[:2].T, up_RF[:2].T, strict=True)]
    assert torch.equal(torch.stack(one_by_one, dim=1), y_RF[:2])


@every_dtype
@every_head
@settings(max_examples=15)
@given(seed=seeds, cut=cuts, heads=st.integers(1, 3))
def test_a_row_is_rotated_to_the_same_bits_wherever_it_lies(dtype, head_dim, seed, cut, heads):
    x_RAD = normal(82, heads + 1, head_dim, seed=seed, dtype=dtype)[:, 1:]
    cos_RD, sin_RD = (table_PD[:82] for table_PD in tables(head_dim, dtype))
    rows = slice(cut[0], sum(cut))
    y_RAD = rotate(x_RAD, cos_RD, sin_RD)
    assert torch.equal(rotate(x_RAD[rows], cos_RD[rows], sin_RD[rows]), y_RAD[rows])
    by_head = [rotate(x_RAD[:, [head]], cos_RD, sin_RD) for head in range(heads)]
    assert torch.equal(torch.cat(by_head, dim=1), y_RAD)


def test_two_threads_keep_the_bits(two_threads):
    """Large enough that torch shares every one of these among threads."""
    x_RH, weight_H = normal(96, 1001, seed=1), normal(1001, seed=2)
    alone = [(rms_norm(x_H, weight_H, 1e-5), silu_mul(x_H, x_H)) for x_H in x_RH.split(1)]
    assert torch.equal(rms_norm(x_RH, weight_H, 1e-5), torch.cat([normed for normed, _ in alone]))
    assert torch.equal(silu_mul(x_RH, x_RH), torch.cat([gated for _, gated in alone]))


def test_the_library_silu_would_break_the_law():
    """Control: its vector and scalar forms differ in the last place."""
    x_F = 3 * normal(4099, seed=1)
    one_by_one = torch.cat([F.silu(x_1) for x_1 in x_F.split(1)])
    if torch.equal(F.silu(x_F), one_by_one):
        pytest.skip("this library's silu gives an element the same bits wherever it lies")
