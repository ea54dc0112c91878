"""A square product of Kimi-K2.5's hidden size, for a step, a batch of trees and a prompt."""

import torch

from kernels.gpu.linear import linear, scratch_elements
from tests.kernels.gpu.proofs.compile_spec import CompileSpec, Needs, Step, empty

HIDDEN = 7168
MULTIPLIES = Needs(tensor_cores=True, async_copies=True)


def _product(rows: int, outputs: int = HIDDEN, dtype: torch.dtype = torch.bfloat16) -> Step:
    x_RK, weight_NK = empty(rows, HIDDEN), empty(outputs, HIDDEN)
    out_RN = empty(rows, outputs, dtype=dtype)
    scratch = empty(8 * rows * outputs, dtype=torch.float32)
    assert scratch_elements(rows, outputs, HIDDEN) <= scratch.numel()
    return lambda rows: linear(x_RK[:rows], weight_NK, None, out_RN[:rows], scratch)


def _of_a_slice() -> Step:
    """What an eighth of Kimi-K2.5 multiplies rows with in its layers, but for square products."""
    rows, shapes = 16, ((2112, HIDDEN), (1536, 1536), (4608, HIDDEN), (512, HIDDEN))
    shapes += (HIDDEN, 1024), (HIDDEN, 2304), (HIDDEN, 256)
    weights = [empty(*shape) for shape in shapes]
    parts = [(empty(rows, shape[1]), empty(rows, shape[0])) for shape in shapes]
    scratch = empty(8 * rows * HIDDEN, dtype=torch.float32)
    return lambda rows: [
        linear(x_RK[:rows], weight_NK, None, out_RN[:rows], scratch)
        for weight_NK, (x_RK, out_RN) in zip(weights, parts, strict=True)
    ]


APART = {"_multiply": MULTIPLIES, "_add_parts": Needs()}
SPECS = [
    CompileSpec("product of 16 rows", lambda: _product(16), APART, range(1, 17)),
    CompileSpec("product of 64 rows", lambda: _product(64), APART, range(17, 65)),
    CompileSpec(
        "product of a prompt", lambda: _product(512), {"_multiply": MULTIPLIES}, (65, 100, 512)
    ),
    CompileSpec("router's logits", lambda: _product(16, 384, torch.float32), APART, range(1, 17)),
    CompileSpec("products of a slice", _of_a_slice, APART, range(1, 17), variants=14),
]
