"""Kimi-K2.5's experts: some whole ones, a slice of all, and some in bfloat16."""

from collections.abc import Sequence

import torch

from kernels.gpu.expert_scratch import new_scratch
from kernels.gpu.expert_weights import DenseExperts, ExpertWeight
from kernels.gpu.experts import mix_experts
from tests.kernels.gpu.proofs.compile_spec import CompileSpec, Needs, Step, empty
from tests.kernels.gpu.specs.linear import HIDDEN, MULTIPLIES
from tests.kernels.gpu.specs.w4_linear import empty_weight

EXPERTS, WIDTH, CHOICES = 48, 2048, 8
ALL, SLICE = 384, 256


def _int4(sizes: Sequence[int], experts: int = EXPERTS, width: int = WIDTH) -> Step:
    shapes = (experts, 2 * width, HIDDEN), (experts, HIDDEN, width)
    return _mixture(sizes, *(empty_weight(*shape) for shape in shapes))


def _dense(sizes: Sequence[int]) -> Step:
    shapes = (EXPERTS, 2 * WIDTH, HIDDEN), (EXPERTS, HIDDEN, WIDTH)
    return _mixture(sizes, *(DenseExperts(empty(*shape)) for shape in shapes))


def _mixture(sizes: Sequence[int], gate_up: ExpertWeight, down: ExpertWeight) -> Step:
    scratch = {rows: new_scratch(rows, CHOICES, gate_up, down) for rows in sizes}
    x_RH, shared_RH, out_RH = (empty(max(sizes), HIDDEN) for _ in range(3))
    experts_RC = empty(max(sizes), CHOICES, dtype=torch.int32)
    weights_RC = empty(max(sizes), CHOICES, dtype=torch.float32)
    return lambda rows: mix_experts(
        x_RH[:rows],
        experts_RC[:rows],
        weights_RC[:rows],
        (gate_up, down),
        shared_RH[:rows],
        scratch[rows],
        out_RH[:rows],
    )


KERNELS = {
    "_plan": Needs(wide_loads=False),
    "_multiply": MULTIPLIES,
    "_activate_pairs": Needs(),
    "_mix": Needs(),
}
STEPS, PROMPTS = (1, 2, 7, 16, 64), (256, 512)
# Gate and up, and down: two shapes of one kernel.
INT4_SPECS = [
    CompileSpec("experts of a step", lambda: _int4(STEPS), KERNELS, STEPS, variants=5),
    CompileSpec("experts of a prompt", lambda: _int4(PROMPTS), KERNELS, PROMPTS, variants=5),
    CompileSpec(
        "an eighth of each expert",
        lambda: _int4(STEPS, ALL, SLICE),
        KERNELS,
        STEPS,
        variants=5,
    ),
]
DENSE_SPECS = [
    CompileSpec("bf16 experts of a step", lambda: _dense(STEPS), KERNELS, STEPS, variants=5),
    CompileSpec("bf16 experts of a prompt", lambda: _dense(PROMPTS), KERNELS, PROMPTS, variants=5),
]
SPECS = INT4_SPECS + DENSE_SPECS
