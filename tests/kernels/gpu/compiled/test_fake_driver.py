"""The fake driver notes what a graph would keep, and how often a kernel is compiled."""

import pytest
import torch
import triton
import triton.language as tl

from tests.kernels.gpu.proofs.fake_driver import fake_driver

WIDTH = 64


@triton.jit
def scales(x, out, rows, width: tl.constexpr):
    at = tl.program_id(0) * width + tl.arange(0, width)
    tl.store(out + at, tl.load(x + at) * rows)


@triton.jit(do_not_specialize=["rows"])
def scales_by_any_number(x, out, rows, width: tl.constexpr):
    at = tl.program_id(0) * width + tl.arange(0, width)
    tl.store(out + at, tl.load(x + at) * rows)


def launch(kernel, rows, x_RW, out_RW):
    kernel[(rows,)](x_RW, out_RW, rows, WIDTH)


@pytest.fixture
def buffers():
    return torch.zeros(2, 65, WIDTH).unbind()


def test_a_launch_is_kept_as_a_graph_keeps_it(buffers):
    x_RW, out_RW = buffers
    with fake_driver() as driver:
        launch(scales, 3, x_RW, out_RW)
    (kept,) = driver.launches
    assert (kept.name, kept.grid) == ("scales", (3, 1, 1))
    assert kept.args == (x_RW.data_ptr(), out_RW.data_ptr(), 3, WIDTH)
    assert not out_RW.any(), "nothing is run"


def test_the_same_buffers_give_the_same_plan(buffers):
    plans = []
    for _ in range(2):
        with fake_driver() as driver:
            launch(scales, 3, *buffers)
        plans.append(driver.launches)
    assert plans[0] == plans[1]


def test_a_buffer_of_its_own_for_every_step_is_found(buffers):
    x_RW, out_RW = buffers
    plans = []
    for out in (out_RW, torch.zeros_like(out_RW)):
        with fake_driver() as driver:
            launch(scales, 3, x_RW, out)
        plans.append(driver.launches)
    assert plans[0] != plans[1]


def test_a_number_that_varies_compiles_again_and_again(buffers):
    """1, multiples of 16, and all others are three kernels."""
    with fake_driver() as driver:
        for rows in range(1, 65):
            launch(scales, rows, *buffers)
    assert len(driver.variants) == 3
    assert len(driver.launches) == 64


def test_a_number_that_is_not_specialised_compiles_once(buffers):
    with fake_driver() as driver:
        for rows in range(1, 65):
            launch(scales_by_any_number, rows, *buffers)
    assert len(driver.variants) == 1


def test_a_tensor_that_is_not_aligned_is_another_variant(buffers):
    x_RW, out_RW = buffers
    with fake_driver() as driver:
        launch(scales_by_any_number, 2, x_RW, out_RW)
        launch(scales_by_any_number, 2, x_RW.flatten()[1:], out_RW)
    assert len(driver.variants) == 2


def test_a_chip_has_variants_of_its_own(buffers):
    variants = []
    for sm in (90, 120):
        with fake_driver(sm) as driver:
            launch(scales, 2, *buffers)
        assert driver.binaries.keys() == driver.variants
        variants.append(driver.variants)
    assert not variants[0] & variants[1]


def test_a_grid_no_chip_has_is_refused(buffers):
    with fake_driver(), pytest.raises(AssertionError, match="grid"):
        scales[(1, 65536)](*buffers, 1, WIDTH)
