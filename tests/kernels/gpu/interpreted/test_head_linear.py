"""Products a head against float64, between neighbours, and their rows in any company.

Legend: R rows, A heads, N outputs, K inputs.
"""

import pytest
import torch

from kernels.gpu.head_linear import head_linear, tile_for
from tests.kernels.gpu.interpreted.test_linear import ROUNDED, normal, twice, unwritten
from tests.kernels.gpu.proofs.memory_guard import as_bytes, launch_guarded

BESIDE = 5


def product(x_RAK, weight_ANK):
    out_RAN = unwritten(len(x_RAK), *weight_ANK.shape[:2])
    head_linear(x_RAK, weight_ANK, out_RAN)
    return out_RAN


def assert_near(y_RAN, x_RAK, weight_ANK):
    """Within the rounding of the result and of float32 sums."""
    x_RAK, weight_ANK = x_RAK.double(), weight_ANK.double()
    exact_RAN = torch.einsum("rak,ank->ran", x_RAK, weight_ANK)
    size_RAN = torch.einsum("rak,ank->ran", x_RAK.abs(), weight_ANK.abs())
    allowed_RAN = ROUNDED * exact_RAN.abs() + 2**-20 * size_RAN
    assert torch.all((y_RAN.double() - exact_RAN).abs() <= allowed_RAN)


@pytest.mark.parametrize("rows", [1, 16, 17, 130])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 7, 33), (2, 70, 130)], ids=str)
def test_a_product_of_any_shape(rows, shape):
    x_RAK, weight_ANK = normal(rows, shape[0], shape[2]), normal(*shape)
    assert_near(product(x_RAK, weight_ANK), x_RAK, weight_ANK)


@pytest.mark.parametrize(("outputs", "inputs"), [(512, 128), (128, 512)])
def test_products_of_kimis_heads(outputs, inputs):
    x_RAK, weight_ANK = normal(2, 2, inputs), normal(2, outputs, inputs)
    assert_near(product(x_RAK, weight_ANK), x_RAK, weight_ANK)


@pytest.mark.parametrize("rows", [2, 20, 70])
def test_heads_may_lie_in_wider_ones_whose_rest_is_nobodys(rows):
    wide_RAX, weight_ANK = normal(rows, 3, 40 + BESIDE), normal(3, 36, 40)
    wide_RAX[..., 40:] = torch.nan
    out_RAX = unwritten(rows, 3, 36 + BESIDE)
    x_RAK, out_RAN = wide_RAX[..., :40], out_RAX[..., :36]
    launch_guarded(lambda: head_linear(x_RAK, weight_ANK, out_RAN), out_RAX)
    assert_near(out_RAN, x_RAK, weight_ANK)
    assert out_RAX[..., 36:].isnan().all()


def test_a_row_has_the_same_bits_in_any_company():
    order_G = torch.randperm(512 // 32)
    x_RAK = twice(normal(66 * 2, 256), -1, order_G).unflatten(0, (66, 2))
    weight_ANK = twice(normal(2 * 40, 256), 1, order_G).unflatten(0, (2, 40))
    together_RAN = product(x_RAK, weight_ANK)
    assert together_RAN.ne(0).float().mean() > 0.5
    assert tile_for(1) != tile_for(66)
    for rows in (slice(0, 1), slice(65, 66), slice(3, 20)):
        alone_RAN = product(x_RAK[rows], weight_ANK)
        assert torch.equal(as_bytes(alone_RAN), as_bytes(together_RAN[rows]))


def test_neighbours_that_are_no_numbers_are_not_felt():
    x_RAK, weight_ANK = normal(18, 2, 80), normal(2, 5, 80)
    alone_RAN = product(x_RAK[:1], weight_ANK)
    x_RAK[1:] = torch.nan
    assert torch.equal(as_bytes(product(x_RAK, weight_ANK)[:1]), as_bytes(alone_RAN))


def test_weights_that_would_be_read_wrongly_are_refused():
    with pytest.raises(ValueError, match="contiguous"):
        head_linear(normal(4, 2, 8), normal(2, 8, 6).mT, unwritten(4, 2, 6))
