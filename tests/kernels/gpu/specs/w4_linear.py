"""A square product of Kimi-K2.5's hidden size with 4-bit weights."""

import torch

from kernels.gpu.packed_int4 import PackedInt4
from kernels.gpu.w4_linear import scratch_elements, w4_linear
from tests.kernels.gpu.proofs.compile_spec import CompileSpec, Step, empty
from tests.kernels.gpu.specs.linear import APART, HIDDEN, MULTIPLIES


def empty_weight(*shape: int) -> PackedInt4:
    """Return room for a weight [N, K], or for those of experts [E, N, K]."""
    *experts, outputs, inputs = shape
    words_NTI = empty(*experts, outputs, inputs // 256, 32, dtype=torch.int32)
    scales_T4N = empty(*experts, inputs // 256, 4, outputs, dtype=torch.int32)
    return PackedInt4(words_NTI, scales_T4N, inputs)


def _product(rows: int) -> Step:
    x_RK, weight, out_RN = empty(rows, HIDDEN), empty_weight(HIDDEN, HIDDEN), empty(rows, HIDDEN)
    scratch = empty(scratch_elements(rows, weight), dtype=torch.float32)
    return lambda rows: w4_linear(x_RK[:rows], weight, None, out_RN[:rows], scratch)


SPECS = [
    # Between 16 and 64 rows it is a prompt's tile with less around it.
    CompileSpec(
        "4-bit product of 16 rows",
        lambda: _product(64),
        APART,
        (*range(17, 65), *range(1, 17)),
        variants=3,
    ),
    CompileSpec(
        "4-bit product of a prompt",
        lambda: _product(512),
        {"_multiply": MULTIPLIES},
        (65, 100, 512),
    ),
]
