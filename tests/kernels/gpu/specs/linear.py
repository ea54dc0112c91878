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


APART = {"_multiply": MULTIPLIES, "_add_parts": Needs()}
SPECS = [
    CompileSpec("product of 16 rows", lambda: _product(16), APART, range(1, 17)),
    CompileSpec("product of 64 rows", lambda: _product(64), APART, range(17, 65)),
    CompileSpec(
        "product of a prompt", lambda: _product(512), {"_multiply": MULTIPLIES}, (65, 100, 512)
    ),
    CompileSpec("router's logits", lambda: _product(16, 384, torch.float32), APART, range(1, 17)),
]
