"""Kimi-K2.5's experts, those of one GPU of eight, for a step and a prompt."""

from collections.abc import Sequence

import torch

from kernels.gpu.expert_scratch import new_scratch
from kernels.gpu.experts import mix_experts
from tests.kernels.gpu.proofs.compile_spec import CompileSpec, Needs, Step, empty
from tests.kernels.gpu.specs.linear import HIDDEN, MULTIPLIES
from tests.kernels.gpu.specs.w4_linear import empty_weight

EXPERTS, WIDTH, CHOICES = 48, 2048, 8


def _mixture(sizes: Sequence[int]) -> Step:
    gate_up = empty_weight(EXPERTS, 2 * WIDTH, HIDDEN)
    down = empty_weight(EXPERTS, HIDDEN, WIDTH)
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
SPECS = [
    CompileSpec("experts of a step", lambda: _mixture(STEPS), KERNELS, STEPS, variants=5),
    CompileSpec("experts of a prompt", lambda: _mixture(PROMPTS), KERNELS, PROMPTS, variants=5),
]
