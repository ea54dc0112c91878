"""Triton's interpreter with bfloat16 and fp8 that are such.

As it comes, it adds, multiplies and compares the bits of bfloat16 as integers, and cuts off where a
GPU rounds to nearest, ties to even. Here every operation computes in float32 and rounds once, which
is what torch does; conversions to fp8 saturate, as the instruction on the chip does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from tests.kernels.gpu.proofs import quick_interpreter

_FP8 = {tl.float8e4nv: torch.float8_e4m3fn, tl.float8e5: torch.float8_e5m2}
_WIDENED = {
    *(np.add, np.subtract, np.multiply, np.divide, np.fmod, np.minimum, np.maximum),
    *(np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal),
}


def float32_of(bits: np.ndarray) -> np.ndarray:
    """Return the values of bfloat16 bits; exact."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def bfloat16_bits(values: Any) -> np.ndarray:
    """Return float32 rounded to bfloat16: to nearest, ties to even, NaN stays NaN."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


class FloatBuilder(InterpreterBuilder):
    """Triton's interpreter of single operations, where floats of 8 and 16 bits are floats."""

    def cast_impl(self, src: TensorHandle, dst_type: Any) -> TensorHandle:
        source, target = _element(src), dst_type.scalar
        if source == target and (target == tl.bfloat16 or target in _FP8):
            return TensorHandle(src.data, target)
        if target == tl.bfloat16:
            return TensorHandle(bfloat16_bits(_widened(src).data.astype(np.float32)), target)
        if source == tl.bfloat16 and target == tl.float32:
            return _widened(src)
        return super().cast_impl(_widened(src), dst_type)

    def create_fp_to_fp(self, src: TensorHandle, dst_type: Any, rounding: Any) -> TensorHandle:
        target = dst_type.scalar
        if _element(src) in _FP8:
            return self.cast_impl(_widened(src), dst_type)
        if target in _FP8:
            return TensorHandle(_fp8_bits(_widened(src).data, _FP8[target]), target)
        if tl.bfloat16 in (_element(src), target):
            return self.cast_impl(src, dst_type)
        return super().create_fp_to_fp(src, dst_type, rounding)

    def create_dot(
        self, a: TensorHandle, b: TensorHandle, start: TensorHandle, *rest: Any
    ) -> TensorHandle:
        """Round a sum once, in no order: one of a matrix library depends on where its row lies."""
        if _element(start) != tl.float32:
            return super().create_dot(_widened(a), _widened(b), start, *rest)
        products = np.matmul(_widened(a).data, _widened(b).data, dtype=np.float64)
        return TensorHandle((products + start.data).astype(np.float32), tl.float32)

    def binary_op(self, lhs: TensorHandle, rhs: TensorHandle, op: Any) -> TensorHandle:
        if _element(lhs) != tl.bfloat16 or op not in _WIDENED:
            return super().binary_op(lhs, rhs, op)
        result = op(_widened(lhs).data, _widened(rhs).data)
        return _truth(result) if result.dtype == bool else _rounded(result)

    def unary_op(self, arg: TensorHandle, op: Any) -> TensorHandle:
        if _element(arg) != tl.bfloat16:
            return super().unary_op(arg, op)
        return _rounded(op(_widened(arg).data))

    def get_bf16(self, value: float) -> TensorHandle:
        return _rounded([value])


def _element(handle: TensorHandle) -> Any:
    return handle.dtype if isinstance(handle.dtype, tl.pointer_type) else handle.dtype.scalar


def _widened(handle: TensorHandle) -> TensorHandle:
    """Return floats of 8 and brain floats of 16 bits as float32, anything else as it is."""
    element = _element(handle)
    if element == tl.bfloat16:
        return TensorHandle(float32_of(handle.data), tl.float32)
    if element in _FP8:
        bits = torch.from_numpy(np.ascontiguousarray(handle.data))
        return TensorHandle(bits.view(_FP8[element]).float().numpy(), tl.float32)
    return handle


def _rounded(values: Any) -> TensorHandle:
    return TensorHandle(bfloat16_bits(values), tl.bfloat16)


def _truth(values: np.ndarray) -> TensorHandle:
    return TensorHandle(values, tl.int1)


def _fp8_bits(values: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    most = torch.finfo(dtype).max
    values = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
    return values.clamp(-most, most).to(dtype).view(torch.uint8).numpy()


def install() -> None:
    """Let everything that is interpreted from now on compute so."""
    interpreter.interpreter_builder.__class__ = FloatBuilder
    quick_interpreter.install()
