"""A row of a linear layer has the same bits wherever it lies and whatever is beside it.

Legend: R rows, N outputs, K inputs.
"""

from functools import cache
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import linear
from kernels.linear import (
    ROW_BLOCK,
    DenseLinear,
    JoinedLinear,
    padded_rows,
    row_blocked_linear,
)

SHAPES = [(1, 1), (7, 4097), (48, 64), (257, 33), (576, 1728), (1536, 576)]
DTYPES = [torch.float32, torch.bfloat16]
every_layer = pytest.mark.parametrize("bias", [False, True], ids=["no_bias", "bias"])
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
seeds = st.integers(0, 2**32)
row_counts = st.integers(1, 100)


def normal(*shape, seed, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@cache
def layer(shape, dtype, bias):
    outputs, inputs = shape
    bias_N = normal(outputs, seed=2, dtype=dtype) if bias else None
    return DenseLinear(normal(outputs, inputs, seed=1, dtype=dtype), bias_N)


@every_shape
@every_dtype
@every_layer
@settings(max_examples=12)
@given(rows=row_counts, data=st.data(), seed=seeds, scale=st.sampled_from([1, 1000]))
def test_a_row_does_not_feel_its_place_its_companions_or_their_number(
    shape, dtype, bias, rows, data, seed, scale
):
    place = data.draw(st.integers(0, rows - 1))
    x_K = normal(shape[1], seed=seed, dtype=dtype)
    x_RK = scale * normal(rows, shape[1], seed=seed + 1, dtype=dtype)
    x_RK[place] = x_K
    apply = layer(shape, dtype, bias)
    assert torch.equal(apply(x_RK)[place], apply(x_K[None])[0])


@every_shape
@every_dtype
@given(rows=row_counts, seed=seeds, skipped_rows=st.integers(0, 3), skipped=st.integers(0, 3))
@settings(max_examples=8)
def test_a_row_does_not_feel_where_in_memory_it_lies(
    shape, dtype, rows, seed, skipped_rows, skipped
):
    """Rows cut out of a larger tensor start at odd addresses and lie further apart."""
    wider = normal(rows + skipped_rows, shape[1] + 2 * skipped, seed=seed, dtype=dtype)
    x_RK = wider[skipped_rows:, skipped : skipped + shape[1]]
    apply = layer(shape, dtype, bias=True)
    assert torch.equal(apply(x_RK), apply(x_RK.clone(memory_format=torch.contiguous_format)))


@every_shape
@every_dtype
def test_two_threads_keep_the_law(shape, dtype, two_threads):
    apply = layer(shape, dtype, bias=True)
    x_RK = normal(70, shape[1], seed=3, dtype=dtype)
    alone = [apply(x_RK[row : row + 1]) for row in range(0, 70, 9)]
    assert torch.equal(apply(x_RK)[::9], torch.cat(alone))


def test_one_product_over_all_rows_would_break_the_law():
    """Control: were it the same anyway, the tests above would prove nothing."""
    for shape, dtype, rows in product(SHAPES, reversed(DTYPES), (48, 64, 96, 100)):
        apply = layer(shape, dtype, bias=False)
        x_RK = normal(rows, shape[1], seed=rows, dtype=dtype)
        if not torch.equal(F.linear(x_RK, apply.weight_NK), apply(x_RK)):
            return
    pytest.skip("this matrix library gives a row the same bits in products of any size")


@every_shape
@every_dtype
@every_layer
def test_it_is_the_product(shape, dtype, bias):
    """Off by the rounding of a sum in float32, which grows with its length, and of the output."""
    apply = layer(shape, dtype, bias)
    x_RK = normal(50, shape[1], seed=4, dtype=dtype)
    exact_RN = x_RK.double() @ apply.weight_NK.double().T
    if apply.bias_N is not None:
        exact_RN += apply.bias_N.double()
    rounding, rounding_of_sum = torch.finfo(dtype).eps, torch.finfo(torch.float32).eps
    torch.testing.assert_close(
        apply(x_RK).double(), exact_RN, rtol=rounding, atol=rounding_of_sum * (shape[1] + 8)
    )


@every_dtype
def test_no_rows_give_no_rows(dtype):
    assert layer((48, 64), dtype, bias=True)(torch.empty(0, 64, dtype=dtype)).shape == (0, 48)


@given(st.integers(0, 1000))
def test_rows_are_padded_to_whole_blocks_and_no_further(rows):
    assert padded_rows(rows) % ROW_BLOCK == 0
    assert 0 <= padded_rows(rows) - rows < ROW_BLOCK


class FickleLibrary:
    """A matrix library whose products of more than 16 rows come out otherwise."""

    def __init__(self):
        self.row_counts = []

    def linear(self, x_RK, weight_NK, bias_N=None):
        self.row_counts.append(len(x_RK))
        y_RN = F.linear(x_RK, weight_NK, bias_N)
        return y_RN if len(x_RK) <= ROW_BLOCK else y_RN * (1 + 2**-20)

    pad = staticmethod(F.pad)


def test_wide_blocks_are_used_only_where_they_give_the_bits_of_narrow_ones(monkeypatch):
    library = FickleLibrary()
    monkeypatch.setattr(linear, "F", library)
    monkeypatch.setattr(linear, "_agreements", {})
    apply = DenseLinear(normal(48, 64, seed=1))
    apply(normal(16, 64, seed=5))  # The first product looks for wide blocks.
    library.row_counts.clear()
    apply(normal(70, 64, seed=5))
    assert library.row_counts == [ROW_BLOCK] * 5


@every_shape
@every_dtype
def test_wide_blocks_give_the_bits_of_narrow_ones_where_they_are_used(shape, dtype):
    apply = layer(shape, dtype, bias=True)
    if not apply._wide:
        pytest.skip("on this machine wide blocks of this shape are not used")
    x_RK = normal(100, shape[1], seed=6, dtype=dtype)
    narrow_RN = row_blocked_linear(x_RK, apply.weight_NK, apply.bias_N, False)
    assert torch.equal(apply(x_RK), narrow_RN)


def test_joined_layers_say_what_each_says_one_beside_the_other():
    parts = [layer((48, 64), torch.bfloat16, True), layer((7, 64), torch.bfloat16, False)]
    x_RK = normal(5, 64, seed=3, dtype=torch.bfloat16)
    joined = JoinedLinear(*parts)
    assert torch.equal(joined(x_RK), torch.cat([part(x_RK) for part in parts], dim=1))
    assert joined.like.dtype == torch.bfloat16
