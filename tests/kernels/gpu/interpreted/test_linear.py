"""Products with bfloat16 weights against float64, and their rows in any company.

Legend: R rows, N outputs, K inputs, P parts of the inputs.
"""

import pytest
import torch

from kernels.gpu.linear import linear, parts_of, scratch_elements, tile_for
from tests.kernels.gpu.proofs.memory_guard import as_bytes, launch_guarded

ROUNDED = 2**-8
every_count = pytest.mark.parametrize("rows", [1, 16, 17, 64, 65])
DIVIDED = (70, 4096)


def normal(*shape):
    return torch.randn(*shape).bfloat16()


def twice(half_XK, sign, order_G):
    """Lay a half and itself, or its negative, in mixed groups of 32: products of the two cancel.

    What is left of a sum is what it rounded off, and no other order of summing has that.
    """
    both_XK = torch.cat((half_XK, sign * half_XK), dim=1)
    return both_XK.unflatten(1, (-1, 32))[:, order_G].flatten(1)


def unwritten(*shape, dtype=torch.bfloat16):
    return torch.full(shape, torch.nan, dtype=dtype)


def product(x_RK, weight_NK, bias_N=None, dtype=torch.bfloat16):
    rows, (outputs, inputs) = len(x_RK), weight_NK.shape
    out_RN = unwritten(rows, outputs, dtype=dtype)
    scratch = unwritten(scratch_elements(rows, outputs, inputs), dtype=torch.float32)
    linear(x_RK, weight_NK, bias_N, out_RN, scratch)
    return out_RN


def assert_near(y_RN, x_RK, weight_NK, bias_N=None):
    """Within the rounding of the result and of as many float32 sums as there are inputs."""
    exact_RN = x_RK.double() @ weight_NK.double().T
    size_RN = x_RK.double().abs() @ weight_NK.double().abs().T
    if bias_N is not None:
        exact_RN += bias_N.double()
    rounding = ROUNDED if y_RN.dtype == torch.bfloat16 else 2**-24
    allowed_RN = rounding * exact_RN.abs() + 2**-20 * size_RN
    assert torch.all((y_RN.double() - exact_RN).abs() <= allowed_RN)


@every_count
@pytest.mark.parametrize("shape", [(1, 1), (7, 33), (65, 200), (3, 2304)], ids=str)
@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
def test_a_product_of_any_shape(rows, shape, has_bias):
    x_RK, weight_NK = normal(rows, shape[1]), normal(*shape)
    bias_N = 8 * normal(shape[0]) if has_bias else None
    assert_near(product(x_RK, weight_NK, bias_N), x_RK, weight_NK, bias_N)


@pytest.mark.parametrize("rows", [2, 20, 66])
def test_programs_touch_only_what_is_theirs(rows):
    outputs, inputs = 70, 2100
    x_RK, weight_NK, bias_N = normal(rows, inputs), normal(outputs, inputs), normal(outputs)
    out_RN = unwritten(rows, outputs)
    scratch = unwritten(scratch_elements(rows, outputs, inputs), dtype=torch.float32)
    launch_guarded(lambda: linear(x_RK, weight_NK, bias_N, out_RN, scratch), out_RN, scratch)
    assert_near(out_RN, x_RK, weight_NK, bias_N)


def test_float32_results_are_not_rounded():
    """A router's logits, of as many inputs as Kimi's."""
    x_RK, weight_NK = normal(3, 7168), normal(24, 7168)
    assert_near(product(x_RK, weight_NK, dtype=torch.float32), x_RK, weight_NK)


def test_a_row_has_the_same_bits_in_any_company():
    """Alone, in a tree, and in a prompt whose programs go through all parts."""
    assert parts_of(*DIVIDED) > 2
    order_G = torch.randperm(DIVIDED[1] // 32)
    x_RK = twice(normal(66, DIVIDED[1] // 2), -1, order_G)
    weight_NK = twice(normal(DIVIDED[0], DIVIDED[1] // 2), 1, order_G)
    together_RN = product(x_RK, weight_NK, dtype=torch.float32)
    assert_near(together_RN, x_RK, weight_NK)
    assert together_RN.ne(0).float().mean() > 0.5
    assert {tile_for(rows) for rows in (1, 33, 66)} == {tile_for(n) for n in (16, 64, 65)}
    for rows in (slice(0, 1), slice(65, 66), slice(3, 20), slice(20, 53)):
        alone_RN = product(x_RK[rows].contiguous(), weight_NK, dtype=torch.float32)
        assert torch.equal(as_bytes(alone_RN), as_bytes(together_RN[rows]))


def test_neighbours_that_are_no_numbers_are_not_felt():
    x_RK, weight_NK = normal(18, 80), normal(5, 80)
    alone_RN = product(x_RK[:1], weight_NK)
    x_RK[1:] = torch.nan
    assert torch.equal(as_bytes(product(x_RK, weight_NK)[:1]), as_bytes(alone_RN))


def test_parts_depend_on_the_weight_alone():
    """Few outputs are divided until there are programs enough, but not into crumbs."""
    assert parts_of(163840, 7168) == 1
    assert parts_of(7168, 7168) == 4
    assert parts_of(576, 7168) == 4
    assert parts_of(64, 18432) == 8
    assert parts_of(64, 1023) == 1


def test_what_would_be_read_wrongly_is_refused():
    x_RK, weight_NK, out_RN = normal(4, 64), normal(8, 64), unwritten(4, 8)
    none = unwritten(0, dtype=torch.float32)
    with pytest.raises(ValueError, match="contiguous"):
        linear(x_RK[:, ::2], weight_NK, None, out_RN, none)
    with pytest.raises(ValueError, match="scratch"):
        linear(normal(4, 2048), normal(8, 2048), None, out_RN, none)
