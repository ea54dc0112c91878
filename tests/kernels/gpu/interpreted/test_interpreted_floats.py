"""bfloat16 and fp8 in the interpreter have the bits that torch gives them."""

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from tests.kernels.gpu.proofs.interpreted_floats import FloatBuilder

SIZE = 4096


@triton.jit
def binary(x, y, out, op: tl.constexpr, size: tl.constexpr):
    at = tl.arange(0, size)
    a, b = tl.load(x + at), tl.load(y + at)
    if op == "+":
        tl.store(out + at, a + b)
    elif op == "*":
        tl.store(out + at, a * b)
    elif op == "/":
        tl.store(out + at, (a / b).to(tl.bfloat16))
    elif op == "<":
        tl.store(out + at, tl.where(a < b, a, b))
    elif op == "scalar":
        tl.store(out + at, a * 2.0 + 1.0)
    else:
        tl.static_assert(False)


@triton.jit
def convert(x, out, size: tl.constexpr):
    at = tl.arange(0, size)
    tl.store(out + at, tl.load(x + at).to(out.dtype.element_ty))


@triton.jit
def product(a, b, out, size: tl.constexpr):
    at = tl.arange(0, size)[:, None] * size + tl.arange(0, size)
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at)))


def numbers(dtype):
    """Values of all magnitudes, among them ties and what a type cannot hold."""
    x = torch.randn(SIZE) * torch.logspace(-8, 4, SIZE)
    x[:4] = torch.tensor([0.0, -0.0, 255.9, 1.00390625])
    return x.to(dtype)


ON_TORCH = {
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: (a.float() / b.float()).bfloat16(),
    "<": torch.minimum,
    "scalar": lambda a, _: a * 2.0 + 1.0,
}


def same_bits(op):
    x, y = numbers(torch.bfloat16), numbers(torch.bfloat16).flip(0) + 1
    out = torch.empty_like(x)
    binary[(1,)](x, y, out, op, SIZE)
    return torch.equal(out, ON_TORCH[op](x, y))


@pytest.mark.parametrize("op", ON_TORCH)
def test_bfloat16_is_computed_as_torch_computes_it(op):
    assert same_bits(op)


@pytest.mark.parametrize("op", ["+", "*", "<"])
def test_without_the_floats_it_is_not(op):
    """Control: if it is, Triton has learned it, and this file can go."""
    interpreter.interpreter_builder.__class__ = interpreter.InterpreterBuilder
    try:
        assert not same_bits(op)
    finally:
        interpreter.interpreter_builder.__class__ = FloatBuilder


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_float32_is_rounded_to_nearest(dtype):
    x, out = numbers(torch.float32), torch.empty(SIZE, dtype=dtype)
    convert[(1,)](x, out, SIZE)
    most = torch.finfo(dtype).max
    assert torch.equal(out.float(), x.clamp(-most, most).to(dtype).float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_what_is_narrow_is_widened_exactly(dtype):
    x, out = numbers(torch.float32).clamp(-448, 448).to(dtype), torch.empty(SIZE)
    convert[(1,)](x, out, SIZE)
    assert torch.equal(out, x.float())


def test_what_fp8_cannot_hold_becomes_its_largest():
    x, out = torch.tensor([1e9, -1e9, 449.0, 0.0]), torch.empty(4, dtype=torch.float8_e4m3fn)
    convert[(1,)](x, out, 4)
    assert out.float().tolist() == [448.0, -448.0, 448.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_products_of_matrices_are_products_of_values(dtype):
    a, b = (torch.randn(32, 32).to(dtype) for _ in range(2))
    out = torch.empty(32, 32)
    product[(1,)](a, b, out, 32)
    torch.testing.assert_close(out.double(), a.double() @ b.double(), rtol=0, atol=1e-4)


@triton.jit
def truths(x, out, size: tl.constexpr):
    at = tl.arange(0, size)
    tl.store(out + at, (tl.load(x + at) > 0).to(tl.int32))


def test_a_comparison_of_integers_is_a_whole_integer_when_it_is_made_one():
    """The interpreter calls the truths it finds by the type of what was compared."""
    x, out = torch.arange(-8, 8, dtype=torch.int32), torch.full((16,), -1, dtype=torch.int32)
    truths[(1,)](x, out, 16)
    assert torch.equal(out, (x > 0).int())
