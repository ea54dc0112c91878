"""The routers of Kimi-K2.5 and of DeepSeek-V3."""

import torch

from kernels.experts import Routing
from kernels.gpu.router import choose_experts
from tests.kernels.gpu.proofs.compile_spec import CompileSpec, Needs, Step, empty

ROWS = 64


def _route(routing: Routing) -> Step:
    logits_RE = empty(ROWS, routing.num_experts, dtype=torch.float32)
    bias_E, live_R = empty(routing.num_experts, dtype=torch.float32), empty(ROWS, dtype=torch.int32)
    experts_RC = empty(ROWS, routing.choices, dtype=torch.int32)
    weights_RC = empty(ROWS, routing.choices, dtype=torch.float32)
    return lambda rows: choose_experts(
        logits_RE[:rows], bias_E, live_R[:rows], routing, experts_RC[:rows], weights_RC[:rows]
    )


KIMI = Routing(384, 8, scale=2.827)
DEEPSEEK = Routing(256, 8, num_groups=8, groups_kept=4, scale=2.5)
SPECS = [
    CompileSpec("router of 384 experts", lambda: _route(KIMI), {"_choose": Needs()}),
    CompileSpec("router of 8 groups of 32", lambda: _route(DEEPSEEK), {"_choose": Needs()}),
]
