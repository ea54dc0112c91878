"""Weights of 8 and 4 bits: how far they are from those given, and what is exact about them.

Legend: R rows, N outputs, K inputs, G groups of 32 inputs.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.linear import DenseLinear
from kernels.quantized_linear import (
    INT4_GROUP,
    WEIGHT_FORMATS,
    Int4Linear,
    Int8Linear,
    new_linear,
    pack_int4,
    quantize_rows,
    unpack_int4,
)

DTYPES = [torch.float32, torch.bfloat16]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
every_shape = pytest.mark.parametrize("shape", [(1, 1), (7, 33), (48, 64), (33, 1000)], ids=str)
every_format = pytest.mark.parametrize("weight_format", WEIGHT_FORMATS)
# Steps are those of 1e-10 where everything is smaller: a lone normal number is not, times these.
scales = st.sampled_from([1e-2, 1.0, 1e6, 1e30])
seeds = st.integers(0, 2**32)
FLOAT_ROUNDING = 2**-24


def normal(*shape, seed, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@every_dtype
@every_shape
@pytest.mark.parametrize("steps", [127, 127 * 128])
@settings(max_examples=15)
@given(seed=seeds, scale=scales)
def test_integers_are_off_by_half_a_step_at_most(shape, dtype, steps, seed, scale):
    """Three roundings of float32 may push a number of many steps over the middle."""
    x_RK = scale * normal(*shape, seed=seed, dtype=dtype)
    q_RK, scale_R1 = quantize_rows(x_RK, steps)
    errors_RK = (x_RK.double() - q_RK.double() * scale_R1.double()).abs()
    assert torch.all(errors_RK <= scale_R1.double() * (0.5 + 4 * steps * FLOAT_ROUNDING))
    assert torch.equal(q_RK.abs().amax(-1), torch.full((shape[0],), steps, dtype=torch.int))


@every_dtype
def test_a_row_of_zeros_stays_one(dtype):
    q_RK, scale_R1 = quantize_rows(torch.zeros(3, 5, dtype=dtype), 127)
    assert torch.equal(q_RK, torch.zeros(3, 5, dtype=torch.int))
    assert torch.all((scale_R1 > 0) & scale_R1.isfinite())


@every_dtype
@every_shape
@settings(max_examples=10)
@given(seed=seeds)
def test_sums_of_8_bits_are_exact_in_any_order(shape, dtype, seed):
    outputs, inputs = shape
    weight_NK, x_RK = normal(*shape, seed=seed, dtype=dtype), normal(9, inputs, seed=1, dtype=dtype)
    order_K = torch.randperm(inputs, generator=torch.Generator().manual_seed(seed))
    bias_N = normal(outputs, seed=2, dtype=dtype)
    shuffled = Int8Linear(weight_NK[:, order_K], bias_N)(x_RK[:, order_K])
    assert torch.equal(shuffled, Int8Linear(weight_NK, bias_N)(x_RK))


def test_the_same_is_not_so_of_floats():
    """Control: in float32 the order of a sum is part of it."""
    weight_NK, x_RK = normal(33, 1000, seed=1), normal(9, 1000, seed=2)
    reversed_RN = DenseLinear(weight_NK.flip(1))(x_RK.flip(1))
    assert not torch.equal(reversed_RN, DenseLinear(weight_NK)(x_RK))


@every_dtype
@every_shape
def test_a_layer_of_8_bits_is_off_by_half_a_step_of_every_input_and_weight(shape, dtype):
    """|x w - x' w'| <= |x| |w - w'| + |x - x'| |w'|; the sum itself is exact."""
    weight_NK, x_RK = normal(*shape, seed=3, dtype=dtype), normal(9, shape[1], seed=4, dtype=dtype)
    bias_N = normal(shape[0], seed=5, dtype=dtype)
    x64_RK, weight64_NK = x_RK.double(), weight_NK.double()
    step_R1 = x64_RK.abs().amax(-1, keepdim=True) / 127
    step_N1 = weight64_NK.abs().amax(-1, keepdim=True) / 127
    bound_RN = x64_RK.abs().sum(-1, keepdim=True) * step_N1.T / 2
    bound_RN += step_R1 / 2 * (weight64_NK.abs() + step_N1 / 2).sum(-1)
    exact_RN = x64_RK @ weight64_NK.T + bias_N.double()
    errors_RN = (Int8Linear(weight_NK, bias_N)(x_RK).double() - exact_RN).abs()
    rounding_of_result = torch.finfo(dtype).eps * (exact_RN.abs() + bound_RN + 1)
    assert torch.all(errors_RN <= (1 + 1e-4) * bound_RN + rounding_of_result)


def as_groups(x_NK):
    return torch.nn.functional.pad(x_NK, (0, -x_NK.shape[1] % INT4_GROUP)).unflatten(
        1, (-1, INT4_GROUP)
    )


@every_dtype
@every_shape
@settings(max_examples=15)
@given(seed=seeds, scale=scales)
def test_4_bits_are_off_by_half_a_step_of_their_group_at_most(shape, dtype, seed, scale):
    weight_NK = scale * normal(*shape, seed=seed, dtype=dtype)
    layer = Int4Linear(weight_NK)
    steps_NG1 = layer.scale_NG.double()[..., None]
    q_NGK, weight_NGK = as_groups(layer.q_NK), as_groups(weight_NK)
    errors_NGK = (weight_NGK.double() - q_NGK.double() * steps_NG1).abs()
    assert torch.all(errors_NGK <= steps_NG1 * (0.5 + 8 * FLOAT_ROUNDING))
    assert torch.equal(q_NGK.abs().amax(-1), torch.full_like(q_NGK[..., 0], 7))


@every_shape
def test_a_scale_of_4_bits_is_a_bfloat16(shape):
    scale_NG = Int4Linear(normal(*shape, seed=6)).scale_NG
    assert torch.equal(scale_NG, scale_NG.bfloat16().float())
    assert scale_NG.shape == (shape[0], -(-shape[1] // INT4_GROUP))


def test_a_group_of_4_bits_does_not_feel_another():
    weight_NK = normal(7, 100, seed=7)
    before = Int4Linear(weight_NK)
    weight_NK[:, 32:64] *= 1000
    after = Int4Linear(weight_NK)
    others_K = torch.cat((torch.arange(32), torch.arange(64, 100)))
    assert torch.equal(after.q_NK[:, others_K], before.q_NK[:, others_K])
    assert torch.equal(after.scale_NG[:, [0, 2, 3]], before.scale_NG[:, [0, 2, 3]])
    assert torch.all(after.scale_NG[:, 1] > 900 * before.scale_NG[:, 1])


@every_dtype
@every_shape
def test_a_layer_of_4_bits_multiplies_weights_of_its_activations_dtype(shape, dtype):
    weight_NK, x_RK = normal(*shape, seed=8, dtype=dtype), normal(9, shape[1], seed=9, dtype=dtype)
    bias_N, layer = normal(shape[0], seed=10, dtype=dtype), Int4Linear(weight_NK)
    weights_NGK = as_groups(layer.q_NK).double() * layer.scale_NG.double()[..., None]
    in_use_NK = weights_NGK.flatten(1)[:, : shape[1]].to(dtype)
    expected_RN = DenseLinear(in_use_NK, bias_N)(x_RK)
    assert torch.equal(Int4Linear(weight_NK, bias_N)(x_RK), expected_RN)


@pytest.mark.parametrize("inputs", [1, 8, 33, 64])
def test_words_of_4_bits_say_every_weight(inputs):
    """As compressed-tensors packs them: the first of eight inputs in the lowest bits, 8 added."""
    q_NK = torch.randint(-8, 8, (5, inputs), generator=torch.Generator().manual_seed(inputs))
    q_NK[0], q_NK[1] = 7, -8
    words_NX = pack_int4(q_NK)
    exact = [
        sum((int(q) + 8) << 4 * i for i, q in enumerate(q_K[at : at + 8]))
        for q_K in torch.nn.functional.pad(q_NK, (0, -inputs % 8))
        for at in range(0, inputs, 8)
    ]
    assert (words_NX.long() % 2**32).flatten().tolist() == exact
    assert torch.equal(unpack_int4(words_NX, inputs).long(), q_NK)


@every_dtype
@every_shape
def test_a_layer_of_packed_words_is_the_one_they_were_packed_of(shape, dtype):
    weight_NK, x_RK = normal(*shape, seed=8, dtype=dtype), normal(9, shape[1], seed=9, dtype=dtype)
    bias_N = normal(shape[0], seed=10, dtype=dtype)
    made = Int4Linear(weight_NK, bias_N)
    stored = made.words_NX, made.scale_NG.bfloat16()
    layer = Int4Linear.from_packed(*stored, shape, weight_NK, bias_N)
    assert torch.equal(layer(x_RK), made(x_RK))
    assert torch.equal(layer.q_NK, made.q_NK)
    assert layer.like.dtype == dtype


@pytest.mark.parametrize(
    ("words", "scales", "dtype"),
    [
        ((7, 8), (7, 3), torch.int32),
        ((7, 9), (7, 2), torch.int32),
        ((6, 8), (6, 2), torch.int32),
        ((7, 8), (7, 2), torch.int64),
    ],
)
def test_words_of_another_shape_are_refused(words, scales, dtype):
    with pytest.raises(ValueError, match=rf"{dtype}.* are not \[7, 64\] weights in groups of 32"):
        Int4Linear.from_packed(
            torch.zeros(words, dtype=dtype), torch.ones(scales), (7, 64), torch.empty(0)
        )


@every_dtype
@every_format
def test_every_format_keeps_the_dtype_of_its_activations(weight_format, dtype):
    layer = new_linear(weight_format, normal(7, 33, seed=11, dtype=dtype))
    assert layer.like.dtype == dtype
    assert layer(normal(3, 33, seed=12, dtype=dtype)).dtype == dtype


def test_more_bits_are_nearer():
    """Control for the names: were two formats the same, or exchanged, this would fail."""
    weight_NK, x_RK = normal(33, 1000, seed=13), normal(9, 1000, seed=14)
    exact_RN = x_RK.double() @ weight_NK.double().T
    errors = [
        (new_linear(name, weight_NK)(x_RK).double() - exact_RN).abs().mean()
        for name in ("dense", "int8", "int4")
    ]
    assert errors[0] * 2 < errors[1]
    assert errors[1] * 2 < errors[2]


@pytest.mark.parametrize("name", ["", "int2", "INT8"])
def test_an_unknown_format_is_refused(name):
    with pytest.raises(ValueError, match=f"one of dense, int8, int4, got '{name}'"):
        new_linear(name, torch.ones(1, 1))
