"""The memory guard finds each planted fault, and lets what is right pass."""

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from tests.kernels.gpu.proofs.memory_guard import (
    ORDERS,
    MemoryFaultError,
    launch_guarded,
    memory_guard,
)

SIZE, BLOCK = 100, 32
GRID = (triton.cdiv(SIZE, BLOCK),)


@triton.jit
def copies(x, out, size, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + at, tl.load(x + at, mask=at < size), mask=at < size)


@triton.jit
def forgets_the_mask_of_its_load(x, out, size, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + at, tl.load(x + at), mask=at < size)


@triton.jit
def forgets_the_mask_of_its_store(x, out, size, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + at, tl.load(x + at, mask=at < size))


@triton.jit
def strays_into_another_tensor(x, out, size, distance, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out + at, tl.load(x + at + distance, mask=at < size), mask=at < size)


@triton.jit
def writes_one_sum(x, out, size, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(out, tl.sum(tl.load(x + at, mask=at < size, other=0.0)))


@triton.jit
def adds_to_one_sum(x, out, size, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.atomic_add(out, tl.sum(tl.load(x + at, mask=at < size, other=0.0)))


@triton.jit
def continues_the_program_before(x, out):
    program = tl.program_id(0)
    before = tl.load(out + program - 1, mask=program > 0, other=0.0)
    tl.store(out + program, before + tl.load(x + program))


@triton.jit
def tells_its_order(out, clock):
    tl.store(out + tl.program_id(0), tl.atomic_add(clock, 1))


@pytest.fixture
def x():
    return torch.rand(SIZE)


@pytest.mark.parametrize("order", ORDERS)
def test_what_is_right_passes(x, order):
    out = torch.zeros(SIZE)
    with memory_guard(order):
        copies[GRID](x, out, SIZE, BLOCK)
    assert torch.equal(out, x)


def test_a_launch_that_has_nothing_to_do_passes(x):
    out = torch.zeros(SIZE)
    with memory_guard():
        copies[GRID](x, out, 0, BLOCK)
    assert not out.any()


@pytest.mark.parametrize("kernel", [forgets_the_mask_of_its_load, forgets_the_mask_of_its_store])
def test_an_access_past_the_end_is_found(x, kernel):
    with memory_guard(), pytest.raises(InterpreterError, match="outside its tensor"):
        kernel[GRID](x, torch.zeros(SIZE), SIZE, BLOCK)


def test_the_end_is_that_of_a_view(x):
    """What lies behind a view belongs to somebody else, though it is the same memory."""
    wide = torch.zeros(2 * SIZE)
    with memory_guard(), pytest.raises(InterpreterError, match="outside its tensor"):
        forgets_the_mask_of_its_store[GRID](x, wide[:SIZE], SIZE, BLOCK)


@triton.jit
def doubles_columns(x, row_stride, width, block: tl.constexpr):
    at = x + tl.program_id(0) * row_stride + tl.arange(0, block)
    there = tl.arange(0, block) < width
    tl.store(at, 2 * tl.load(at, mask=there), mask=there)


@pytest.mark.parametrize(("rows", "columns"), [(3, 8), (1, 8), (3, 1)])
def test_what_lies_between_the_rows_of_a_view_is_not_the_views(rows, columns):
    view = torch.ones(rows, 16)[:, 4 : 4 + columns]
    with memory_guard():
        doubles_columns[(rows,)](view, 16, columns, 16)
    assert (view == 2).all()
    with memory_guard(), pytest.raises(InterpreterError, match="outside its tensor"):
        doubles_columns[(rows,)](view, 16, columns + 1, 16)


def test_a_head_that_is_not_in_a_view_is_found():
    """Two of three heads; the third lies where a head could."""
    heads = torch.ones(2, 3, 8)[:, :2, :4]
    with memory_guard():
        doubles_columns[(2,)](heads, 8, 4, 16)
    assert (heads[0] == 2).all()
    with memory_guard(), pytest.raises(InterpreterError, match="outside its tensor"):
        doubles_columns[(3,)](heads, 8, 4, 16)


def test_a_transposed_view_is_all_its_memory():
    view = torch.ones(16, 3).T
    with memory_guard():
        doubles_columns[(3,)](view, 16, 16, 16)
    assert (view == 2).all()


@pytest.mark.parametrize("distance", [SIZE, -SIZE])
def test_an_access_to_the_neighbour_is_found(distance):
    """Plain bounds of all tensors together would let it pass."""
    both = torch.zeros(3 * SIZE)
    with memory_guard(), pytest.raises(InterpreterError, match="outside its tensor"):
        strays_into_another_tensor[GRID](both[SIZE : 2 * SIZE], both, SIZE, distance, BLOCK)


def test_two_programs_that_write_one_address_are_found(x):
    with memory_guard(), pytest.raises(MemoryFaultError, match="two programs write"):
        writes_one_sum[GRID](x, torch.zeros(1), SIZE, BLOCK)


def test_atomic_additions_are_no_race(x):
    out = torch.zeros(1)
    with memory_guard():
        adds_to_one_sum[GRID](x, out, SIZE, BLOCK)
    torch.testing.assert_close(out[0], x.sum())


@pytest.mark.parametrize("order", ORDERS)
def test_a_program_that_reads_what_another_wrote_is_found(x, order):
    with memory_guard(order), pytest.raises(MemoryFaultError, match="reads what another"):
        continues_the_program_before[(8,)](x, torch.zeros(SIZE))


def test_the_order_of_programs_is_the_one_asked_for():
    forward, reverse = torch.zeros(2, 8, dtype=torch.int32)
    for order, out in zip(ORDERS, (forward, reverse), strict=True):
        with memory_guard(order):
            tells_its_order[(8,)](out, torch.zeros(1, dtype=torch.int32))
    assert forward.tolist() == list(range(8))
    assert reverse.tolist() == list(range(8))[::-1]


def test_a_result_that_depends_on_the_order_is_found():
    """Atomics hide the dependence from the check of addresses."""
    out, clock = torch.zeros(8, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(MemoryFaultError, match="in reverse order"):
        launch_guarded(lambda: tells_its_order[(8,)](out, clock), out, clock)


def test_what_is_written_is_reset_between_the_orders(x):
    """Otherwise a kernel that adds in place would never agree with itself."""
    out = torch.zeros(1)
    launch_guarded(lambda: adds_to_one_sum[(1,)](x, out, SIZE, 128), out)
    torch.testing.assert_close(out[0], x.sum())
