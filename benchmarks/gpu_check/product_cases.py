"""Products with bfloat16 and 4-bit weights, the router, and a layer of experts.

Legend: R rows, A heads, N outputs, K inputs, E experts, C choices of a row, H hidden, F width of an
expert.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from benchmarks.gpu_check.case import (
    ROUNDED,
    SUMMED,
    Case,
    Sizes,
    bytes_of,
    excess_of,
    excess_of_equal,
    normal,
)
from kernels import experts as reference
from kernels.experts import Routing
from kernels.gpu.expert_scratch import new_scratch
from kernels.gpu.experts import mix_experts
from kernels.gpu.head_linear import head_linear
from kernels.gpu.linear import linear, scratch_elements
from kernels.gpu.packed_int4 import PackedInt4, pack_checkpoint, stack
from kernels.gpu.router import choose_experts
from kernels.gpu.w4_linear import scratch_elements as w4_scratch_elements
from kernels.gpu.w4_linear import w4_linear
from kernels.quantized_linear import pack_int4

_PROMPT_ROWS = 512
_MOST_CHOICES = 8
_HEADS, _LATENT, _HEAD_DIM = 8, 512, 128


def cases(sizes: Sizes, device: torch.device) -> Iterator[Case]:
    """Yield products for a step, a batch of trees and a prompt; then what experts need."""
    for rows in (sizes.rows, 4 * sizes.rows, min(_PROMPT_ROWS, 32 * sizes.rows)):
        yield _dense(rows, sizes.hidden, device)
        yield _int4(rows, sizes.hidden, device)
    for outputs, inputs in (_LATENT, _HEAD_DIM), (_HEAD_DIM, _LATENT):
        yield _heads(sizes, outputs, inputs, device)
    yield _router(sizes, device)
    yield _experts(sizes, device)


def _product_excess(out_RN: torch.Tensor, x_RK: torch.Tensor, weight_NK: torch.Tensor) -> float:
    """Of one rounding, and of float32 sums."""
    x_RK, weight_NK = x_RK.double(), weight_NK.double()
    exact_RN = x_RK @ weight_NK.T
    allowed_RN = ROUNDED * exact_RN.abs() + SUMMED * (x_RK.abs() @ weight_NK.abs().T)
    return excess_of(out_RN, exact_RN, allowed_RN)


def _dense(rows: int, width: int, device: torch.device) -> Case:
    x_RK, weight_NK = (normal(n, width, device=device) for n in (rows, width))
    out_RN = torch.empty_like(x_RK)
    scratch = torch.empty(scratch_elements(rows, width, width), device=device)
    return Case(
        f"linear, {rows} rows",
        lambda: linear(x_RK, weight_NK, None, out_RN, scratch),
        (out_RN,),
        lambda: _product_excess(out_RN, x_RK, weight_NK),
        bytes_of(x_RK, weight_NK, out_RN),
    )


def _heads(sizes: Sizes, outputs: int, inputs: int, device: torch.device) -> Case:
    """A product a head: the head's queries to the latent, or what was attended to its values."""
    rows, heads = sizes.rows, min(_HEADS, sizes.rows)
    x_RAK = normal(rows, heads, inputs, device=device)
    weight_ANK = normal(heads, outputs, inputs, device=device)
    out_RAN = x_RAK.new_empty(rows, heads, outputs)

    def excess() -> float:
        of_heads = zip(out_RAN.unbind(1), x_RAK.unbind(1), weight_ANK, strict=True)
        return max(_product_excess(*of_head) for of_head in of_heads)

    return Case(
        f"head_linear, {inputs} to {outputs}",
        lambda: head_linear(x_RAK, weight_ANK, out_RAN),
        (out_RAN,),
        excess,
        bytes_of(x_RAK, weight_ANK, out_RAN),
    )


def _int4(rows: int, width: int, device: torch.device) -> Case:
    x_RK, (weight, dense_NK) = (
        normal(rows, width, device=device),
        _int4_weight(width, width, device),
    )
    out_RN = torch.empty_like(x_RK)
    scratch = torch.empty(w4_scratch_elements(rows, weight), device=device)
    return Case(
        f"w4_linear, {rows} rows",
        lambda: w4_linear(x_RK, weight, None, out_RN, scratch),
        (out_RN,),
        lambda: _product_excess(out_RN, x_RK, dense_NK),
        bytes_of(x_RK, weight.words_NTI, weight.scales_T4N, out_RN),
    )


def _int4_weight(
    outputs: int, inputs: int, device: torch.device
) -> tuple[PackedInt4, torch.Tensor]:
    """Return a random weight as a checkpoint holds it, packed, and what it stands for, [N, K]."""
    q_NK = torch.randint(-8, 8, (outputs, inputs), dtype=torch.int32, device=device)
    scale_NG = (torch.rand(outputs, inputs // 32, device=device) / inputs**0.5).bfloat16()
    dense_NK = (q_NK * scale_NG.float().repeat_interleave(32, dim=1)).bfloat16()
    return pack_checkpoint(pack_int4(q_NK), scale_NG), dense_NK


def _routing(sizes: Sizes) -> Routing:
    return Routing(sizes.experts, min(_MOST_CHOICES, sizes.experts), scale=2.827)


def _router(sizes: Sizes, device: torch.device) -> Case:
    routing = _routing(sizes)
    logits_RE = torch.randn(sizes.rows, sizes.experts, device=device)
    bias_E = torch.randn(sizes.experts, device=device)
    live_R = torch.ones(sizes.rows, dtype=torch.int32, device=device)
    experts_RC = torch.empty(sizes.rows, routing.choices, dtype=torch.int32, device=device)
    weights_RC = torch.empty(sizes.rows, routing.choices, device=device)

    def excess() -> float:
        numbers_RC, expected_RC = reference.choose_experts(logits_RE, bias_E, routing)
        wrong_numbers = excess_of_equal(experts_RC.long(), numbers_RC.long())
        return max(wrong_numbers, excess_of(weights_RC, expected_RC, SUMMED * expected_RC.abs()))

    return Case(
        "choose_experts",
        lambda: choose_experts(logits_RE, bias_E, live_R, routing, experts_RC, weights_RC),
        (experts_RC, weights_RC),
        excess,
        bytes_of(logits_RE, bias_E, experts_RC, weights_RC),
    )


def _experts(sizes: Sizes, device: torch.device) -> Case:
    rows, width = sizes.rows, sizes.expert_width
    gate_up = [_int4_weight(2 * width, sizes.hidden, device) for _ in range(sizes.experts)]
    down = [_int4_weight(sizes.hidden, width, device) for _ in range(sizes.experts)]
    packed = tuple(stack((one for one, _ in layers), sizes.experts) for layers in (gate_up, down))
    dense = [(of_both, of_down) for (_, of_both), (_, of_down) in zip(gate_up, down, strict=True)]
    choices = _routing(sizes).choices
    numbers = [torch.randperm(sizes.experts)[:choices] for _ in range(rows)]
    experts_RC = torch.stack(numbers).int().to(device)
    weights_RC = torch.rand(rows, choices, device=device)
    x_RH, shared_RH = (normal(rows, sizes.hidden, device=device) for _ in range(2))
    scratch = new_scratch(rows, choices, packed[0], packed[1])
    out_RH = torch.empty_like(x_RH)

    def excess() -> float:
        """Four roundings: of gate, up, their product and an expert's output."""
        exact_RH = shared_RH.double()
        for row in range(rows):
            for expert, weight in zip(experts_RC[row].tolist(), weights_RC[row], strict=True):
                both_2FH, down_HF = dense[expert]
                gate_F, up_F = (both_2FH.double() @ x_RH[row].double()).chunk(2)
                exact_RH[row] += weight.double() * (down_HF.double() @ (F.silu(gate_F) * up_F))
        return excess_of(out_RH, exact_RH, 4 * ROUNDED * exact_RH.abs().amax(-1, keepdim=True))

    used = len(set(experts_RC.flatten().tolist())) / sizes.experts
    weight_bytes = sum(bytes_of(one.words_NTI, one.scales_T4N) for one in packed)
    return Case(
        "mix_experts",
        lambda: mix_experts(
            x_RH, experts_RC, weights_RC, (packed[0], packed[1]), shared_RH, scratch, out_RH
        ),
        (out_RH,),
        excess,
        int(used * weight_bytes) + bytes_of(x_RH, shared_RH, out_RH),
    )
