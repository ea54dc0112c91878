"""Products of the interpreter as tensor cores do them: every line of a product in the same way.

A matrix library gives the lines of one product different bits, by where they are in it. Tensor
cores do not. They add the products of some neighbours at once, and what comes out to what was
there, in order; so an element's bits do depend on where in the sum its products are. Here 16 are
added as a tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from triton.runtime.interpreter import TensorHandle

from tests.kernels.gpu.proofs.interpreted_floats import FloatBuilder, _widened

GROUP = 16


def add_products(a_MK: np.ndarray, b_KN: np.ndarray, sum_MN: np.ndarray) -> np.ndarray:
    """Return sum + a b in float32, in groups of 16 products."""
    for start in range(0, a_MK.shape[1], GROUP):
        group = slice(start, start + GROUP)
        terms_MGN = a_MK[:, group, None] * b_KN[None, group, :]
        while (terms := terms_MGN.shape[1]) > 1:
            half = (terms + 1) // 2
            terms_MGN[:, : terms - half] += terms_MGN[:, half:]
            terms_MGN = terms_MGN[:, :half]
        sum_MN = sum_MN + terms_MGN[:, 0]
    return sum_MN


def _create_dot(
    builder: FloatBuilder, a: TensorHandle, b: TensorHandle, d: TensorHandle, *rest: Any
) -> TensorHandle:
    factors = (_widened(x).data.astype(np.float32) for x in (a, b))
    return TensorHandle(add_products(*factors, d.data), d.dtype.scalar)


@contextmanager
def tensor_core_products() -> Iterator[None]:
    """Multiply so whatever is interpreted meanwhile."""
    before, FloatBuilder.create_dot = FloatBuilder.create_dot, _create_dot
    try:
        yield
    finally:
        FloatBuilder.create_dot = before
