"""A norm and a linear layer in any weight format, natively as in the reference.

Legend: R rows, K inputs, N outputs.
"""

from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.linear import DenseLinear
from kernels.normed_linear import NormedLinear, normed_linear
from kernels.quantized_linear import INT4_GROUP, WEIGHT_FORMATS, Int8Linear, new_linear
from tests.kernels.implementations import (
    NATIVE,
    every_implementation,
    natively,
    running,
    use_threads,
)

EPS = 1e-5
# Half the distance between neighbours, relative to a number.
BF16_ROUNDING, FLOAT_ROUNDING = 2**-8, 2**-24
SHAPES = [(1, 1), (7, 33), (33, 1728), (257, 100)]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
every_format = pytest.mark.parametrize("weight_format", WEIGHT_FORMATS)
every_size = [
    pytest.mark.parametrize("outputs", [1, 7, 33, 257]),
    pytest.mark.parametrize("inputs", [1, 33, 64, 100, 1728]),
]
every_layer = [
    pytest.mark.parametrize(
        ("bias", "norm"),
        [(False, False), (False, True), (True, True)],
        ids=["plain", "norm", "bias_and_norm"],
    )
]
seeds = st.integers(0, 2**32)


def all_of(marks):
    def decorate(test):
        for mark in marks:
            test = mark(test)
        return test

    return decorate


def normal(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@cache
def layer(kernels, shape, weight_format, bias=True, norm=True):
    """A layer, packed for the implementation in use."""
    outputs, inputs = shape
    bias_N = normal(outputs, seed=2) if bias else None
    linear = new_linear(weight_format, normal(outputs, inputs, seed=1), bias_N)
    return NormedLinear(linear, 1 + normal(inputs, seed=3) / 4 if norm else None, EPS)


def weight_in_use(linear):
    """What a weight stands for, in float64: in four bits it becomes bfloat16 again."""
    if isinstance(linear, DenseLinear):
        return linear.weight_NK.double()
    if isinstance(linear, Int8Linear):
        return linear.q_NK.double() * linear.scale_N1.double()
    scale_NK = linear.scale_NG.repeat_interleave(INT4_GROUP, 1)[:, : linear.q_NK.shape[1]]
    return (linear.q_NK * scale_NK).bfloat16().double()


def exact_inputs(x_RK, apply):
    x_RK = x_RK.double()
    if apply.norm_K is None:
        return x_RK
    return apply.norm_K.double() * x_RK / ((x_RK**2).mean(-1, keepdim=True) + apply.eps).sqrt()


def exact(x_RK, apply):
    y_RN = exact_inputs(x_RK, apply) @ weight_in_use(apply.linear).T
    return y_RN if apply.linear.bias_N is None else y_RN + apply.linear.bias_N.double()


def error_bound(x_RK, apply, kernels):
    """The most that the roundings on the way can add up to.

    A normed input is rounded to bfloat16, by the reference once more with its weight; in 8 bits it
    then is off by up to half a step. The sum in float32 is rounded as often as it has terms. The
    reference rounds the result to bfloat16.
    """
    is_reference, is_int8 = kernels == "reference", isinstance(apply.linear, Int8Linear)
    inputs_RK, weight_NK = exact_inputs(x_RK, apply).abs(), weight_in_use(apply.linear).abs()
    roundings = 0 if apply.norm_K is None else 2 if is_reference else not is_int8
    errors_RK = roundings * BF16_ROUNDING * inputs_RK
    if is_int8:
        errors_RK = errors_RK + (inputs_RK + errors_RK).amax(-1, keepdim=True) / 127 / 2
    sizes_RN = inputs_RK @ weight_NK.T + (0 if apply.linear.bias_N is None else 1) * 4
    bound_RN = errors_RK @ weight_NK.T + 2 * (x_RK.shape[1] + 8) * FLOAT_ROUNDING * sizes_RN
    return bound_RN + is_reference * BF16_ROUNDING * (exact(x_RK, apply).abs() + bound_RN)


@all_of([*every_size, *every_layer])
@every_format
@every_implementation
def test_it_is_the_product_of_the_normed_rows(kernels, weight_format, outputs, inputs, bias, norm):
    apply = layer(kernels, (outputs, inputs), weight_format, bias, norm)
    x_RK = normal(37, inputs, seed=4)
    y_RN = normed_linear(x_RK, apply)
    assert y_RN.dtype == torch.float32
    errors_RN = (y_RN.double() - exact(x_RK, apply)).abs()
    assert torch.all(errors_RN <= error_bound(x_RK, apply, kernels))


@all_of(every_size)
@pytest.mark.parametrize("bias", [False, True], ids=["no_bias", "bias"])
@natively
def test_sums_of_8_bits_are_those_of_the_reference(kernels, outputs, inputs, bias):
    """They are integers, so only the reference's last rounding is left."""
    apply = layer(kernels, (outputs, inputs), "int8", bias, norm=False)
    x_RK = normal(37, inputs, seed=5)
    y_RN = normed_linear(x_RK, apply)
    assert torch.equal(y_RN.bfloat16(), normed_linear.reference(x_RK, apply).bfloat16())


@every_shape
@pytest.mark.parametrize("norm", [False, True], ids=["no_norm", "norm"])
def test_8_bits_have_the_same_bits_on_every_instruction_set(shape, norm):
    x_RK, outputs = normal(37, shape[1], seed=6), []
    for kernels in NATIVE:
        with running(kernels):
            outputs.append(normed_linear(x_RK, layer(kernels, shape, "int8", norm=norm)))
    assert torch.equal(*outputs)


def test_instruction_sets_differ_in_more_than_name():
    """Control: a sum of floats in another order, or else one set is tested twice."""
    x_RK, outputs = normal(37, 1728, seed=6), []
    for kernels in NATIVE:
        with running(kernels):
            outputs.append(normed_linear(x_RK, layer(kernels, (257, 1728), "dense")))
    assert not torch.equal(*outputs)


@every_shape
@every_format
@every_implementation
@settings(max_examples=12)
@given(
    rows=st.integers(1, 100),
    data=st.data(),
    seed=seeds,
    scale=st.sampled_from([1, 1000]),
    threads=st.sampled_from([(1, 1), (2, 1), (1, 2)]),
)
def test_a_row_does_not_feel_its_place_its_companions_their_number_or_the_threads(
    kernels, shape, weight_format, rows, data, seed, scale, threads
):
    apply = layer(kernels, shape, weight_format)
    x_1K, place = normal(1, shape[1], seed=seed), data.draw(st.integers(0, rows - 1))
    x_RK = scale * normal(rows, shape[1], seed=seed + 1)
    x_RK[place] = x_1K[0]
    use_threads(threads[0])
    beside_others = normed_linear(x_RK, apply)[place]
    use_threads(threads[1])
    alone = normed_linear(x_1K, apply)[0]
    use_threads(1)
    assert torch.equal(beside_others, alone)


@every_shape
@every_format
@every_implementation
def test_a_row_feels_all_of_its_inputs_and_weights(kernels, shape, weight_format):
    """Control for the law above: the largest of each count."""
    apply = layer(kernels, shape, weight_format, norm=False)
    x_RK, weight_NK = normal(40, shape[1], seed=7), weight_in_use(apply.linear)
    y_RN, place = normed_linear(x_RK, apply), int(weight_NK.abs().amin(0).argmax())
    x_RK[-1, place] += 4
    other_RN = normed_linear(x_RK, apply)
    assert torch.equal(other_RN[:-1], y_RN[:-1])
    felt_N = weight_NK[:, place].abs() > weight_NK.abs().amax() / 16
    assert torch.all((other_RN[-1] != y_RN[-1])[felt_N])


@every_format
@every_implementation
def test_a_row_does_not_feel_where_in_memory_it_lies(kernels, weight_format):
    """Rows cut out of a larger tensor start at odd addresses and lie further apart."""
    apply = layer(kernels, (33, 1728), weight_format)
    wider = normal(43, 1728 + 5, seed=8)
    x_RK = wider[3:, 2 : 2 + 1728]
    assert torch.equal(normed_linear(x_RK, apply), normed_linear(x_RK.contiguous(), apply))


@every_format
@natively
def test_a_layer_does_not_feel_which_layer_ran_before(kernels, weight_format):
    """Memory for activations is kept: numbers of a wider layer, of another format, lie in it."""
    apply, x_RK = layer(kernels, (7, 33), weight_format), normal(3, 33, seed=9)
    before = normed_linear(x_RK, apply)
    for other in WEIGHT_FORMATS:
        normed_linear(1e30 * normal(70, 1728, seed=10), layer(kernels, (33, 1728), other))
        assert torch.equal(normed_linear(x_RK, apply), before)


@all_of(every_layer)
@every_format
@every_implementation
def test_a_row_of_zeros_gives_the_bias(kernels, weight_format, bias, norm):
    apply = layer(kernels, (33, 100), weight_format, bias, norm)
    expected_N = apply.linear.bias_N.float() if bias else torch.zeros(33)
    y_RN = normed_linear(torch.zeros(3, 100, dtype=torch.bfloat16), apply)
    assert torch.equal(y_RN, expected_N.expand(3, 33))


@pytest.mark.parametrize("norm", [False, True], ids=["no_norm", "norm"])
@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize("place", [0, 50, 99])
@every_format
@every_implementation
def test_what_is_not_finite_is_not_hidden_and_stays_in_its_row(
    kernels, weight_format, place, broken, norm
):
    apply, x_RK = layer(kernels, (33, 100), weight_format, norm=norm), normal(37, 100, seed=11)
    expected_RN = normed_linear(x_RK, apply)
    x_RK[20, place] = broken
    y_RN = normed_linear(x_RK, apply)
    assert not y_RN[20].isfinite().any()
    others_R = torch.arange(37) != 20
    assert torch.equal(y_RN[others_R], expected_RN[others_R])


@every_format
@every_implementation
def test_no_rows_give_no_rows(kernels, weight_format):
    apply = layer(kernels, (33, 100), weight_format)
    y_RN = normed_linear(torch.empty(0, 100, dtype=torch.bfloat16), apply)
    assert (y_RN.shape, y_RN.dtype) == ((0, 33), torch.float32)
