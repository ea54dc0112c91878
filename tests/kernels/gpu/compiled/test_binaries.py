"""What a compiled kernel is asked for, and that each fault planted here is found."""

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources

from tests.kernels.gpu.proofs.compile_spec import Needs, compiled, empty, faults
from tests.kernels.gpu.proofs.fake_driver import CHIPS

every_chip = pytest.mark.parametrize("sm", CHIPS, ids=lambda sm: f"sm_{sm}")
ALL = Needs(tensor_cores=True, wide_loads=True, async_copies=True)


@triton.jit
def product(a, b, out, steps, size: tl.constexpr):
    at = tl.arange(0, size)[:, None] * size + tl.arange(0, size)
    total = tl.zeros((size, size), tl.float32)
    for step in range(steps):
        offset = step * size * size
        total = tl.dot(tl.load(a + offset + at), tl.load(b + offset + at), total)
    tl.store(out + at, total)


@triton.jit
def doubles(x, out, size: tl.constexpr):
    at = tl.arange(0, size)
    tl.store(out + at, tl.load(x + at) * 2)


def one(launch, sm):
    (binary,) = compiled(launch, sm)
    return binary


@every_chip
def test_a_product_in_a_loop_has_everything(sm):
    a, b = empty(8, 64, 64), empty(8, 64, 64)
    binary = one(lambda: product[(1,)](a, b, empty(64, 64, dtype=torch.float32), 8, 64), sm)
    assert faults(binary, ALL) == []
    assert 16 < binary.registers <= 255


@every_chip
def test_a_tensor_that_is_not_aligned_is_loaded_piece_by_piece(sm):
    x = empty(8193)
    binary = one(lambda: doubles[(1,)](x[1:], empty(8192), 8192), sm)
    assert faults(binary, Needs()) == ["no loads of 16 bytes"]
    assert faults(binary, Needs(wide_loads=False)) == []


@every_chip
def test_what_no_kernel_has_is_missed(sm):
    binary = one(lambda: doubles[(1,)](empty(8192), empty(8192), 8192), sm)
    assert faults(binary, ALL) == ["no tensor cores", "no asynchronous copies"]


@every_chip
def test_spilled_registers_are_found(sm):
    x = empty(16384, dtype=torch.float32)
    binary = one(lambda: doubles[(1,)](x, x, 16384, num_warps=1), sm)
    assert [fault for fault in faults(binary, Needs(wide_loads=False)) if "spilled" in fault]


def test_shared_memory_is_what_the_chip_has():
    """The same kernel fits one chip and not another, with less of it."""

    def launch():
        a, b, out = empty(8, 128, 128), empty(8, 128, 128), empty(128, 128, dtype=torch.float32)
        product[(1,)](a, b, out, 8, 128, num_stages=3, num_warps=8)

    assert faults(one(launch, 90), ALL) == []
    with pytest.raises(OutOfResources, match="shared memory"):
        one(launch, 120)
