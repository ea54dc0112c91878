"""The mixture of `kernels.experts.mix_experts`: only the experts that are chosen are read.

    plan        pairs of a row and a choice, in order of the experts; see `expert_plan`
    gate, up    a program a tile of pairs and 128 outputs: sums of the parts of the inputs
    activation  silu(gate) up of each pair; both are rounded first, as a layer's outputs are
    down        as gate and up, of each pair's activation
    mixture     the row's choices in their order, times their weights, and the shared expert

Every kernel writes by the number of the pair, so what is sorted is only who multiplies beside whom:
a row's bits depend on nothing else, see `row_blocks`. Grids are those of the worst case; a program
without pairs leaves at once. Few rows have tiles of 16 pairs; prompts, where an expert has more, of
32, and one program for all parts of the inputs. Weights are of 4 bits, or bfloat16, whose prompts
have tiles of 64.

Legend: R rows, C choices of a row, Q = R C pairs, T tiles of pairs, E experts, H hidden, F width
of an expert, P parts of the inputs, N outputs, K inputs.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

from kernels.gpu.expert_plan import plan_experts
from kernels.gpu.expert_scratch import ExpertScratch, parts_of
from kernels.gpu.expert_weights import ExpertWeight, num_experts
from kernels.gpu.linear import sum_dense
from kernels.gpu.packed_int4 import STEP_INPUTS, PackedInt4
from kernels.gpu.row_blocks import BLOCK_ROWS, check, keep_sums
from kernels.gpu.w4_linear import sum_int4

_STEP = tl.constexpr(STEP_INPUTS)
_BLOCK = 1024


def mix_experts(
    x_RH: torch.Tensor,
    experts_RC: torch.Tensor,
    weights_RC: torch.Tensor,
    weights: tuple[ExpertWeight, ExpertWeight],
    shared_RH: torch.Tensor | None,
    scratch: ExpertScratch,
    out_RH: torch.Tensor,
) -> None:
    """Write y to `out_RH`. A choice of -1 is none; a row without choices is its shared output.

    x, shared and out are bfloat16, and `out` may be `shared`. `weights` are gate and up, [E, 2 F]
    outputs, the gate's first, and down. Raises ValueError for operands that are not contiguous.
    """
    gate_up, down = weights
    tensors = (*_tensors(gate_up), *_tensors(down))
    check((x_RH, experts_RC, weights_RC, *tensors, shared_RH, out_RH), x_RH, 0)
    choices = experts_RC.shape[1]
    plan_experts(experts_RC, num_experts(gate_up), scratch.plan)
    _multiply_pairs(x_RH, gate_up, choices, choices, scratch, scratch.gate_up_PQN)
    _activate(experts_RC, scratch)
    _multiply_pairs(scratch.activation_QF, down, 1, choices, scratch, scratch.down_PQH)
    _mix[(len(x_RH), triton.cdiv(x_RH.shape[1], _BLOCK))](
        scratch.down_PQH,
        experts_RC,
        weights_RC,
        shared_RH,
        out_RH,
        len(x_RH),
        H=x_RH.shape[1],
        CHOICES=choices,
        PARTS=len(scratch.down_PQH),
        HAS_SHARED=shared_RH is not None,
        BLOCK=_BLOCK,
        enable_fp_fusion=False,
    )


def _tensors(weight: ExpertWeight) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return what a weight's elements are, and the scales of 4-bit ones."""
    return weight[:2] if isinstance(weight, PackedInt4) else (weight.weight_ENK, None)


def _multiply_pairs(
    x_XK: torch.Tensor,
    weight: ExpertWeight,
    pairs_per_x: int,
    choices: int,
    scratch: ExpertScratch,
    sums_PQN: torch.Tensor,
) -> None:
    """Write the product of every pair with its expert's weight; several pairs may have one x."""
    plan, tile, parts = scratch.plan, scratch.tile, parts_of(weight, choices)
    tiles = len(plan.count_T) * triton.cdiv(weight.num_outputs, tile.outputs)
    _multiply[(tiles * len(sums_PQN),)](
        x_XK,
        *_tensors(weight),
        *plan[:4],
        sums_PQN,
        len(plan.count_T),
        sums_PQN.shape[1],
        N=weight.num_outputs,
        K=weight.num_inputs,
        PARTS=parts,
        ALL_PARTS=parts > len(sums_PQN),
        PAIRS_PER_X=pairs_per_x,
        BLOCKS=tile.blocks,
        OUTPUTS=tile.outputs,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def _activate(experts_RC: torch.Tensor, scratch: ExpertScratch) -> None:
    pairs, width = scratch.activation_QF.shape
    _activate_pairs[(pairs, triton.cdiv(width, _BLOCK))](
        scratch.gate_up_PQN,
        experts_RC,
        scratch.activation_QF,
        pairs,
        F=width,
        PARTS=len(scratch.gate_up_PQN),
        BLOCK=_BLOCK,
        enable_fp_fusion=False,
    )


@triton.jit(do_not_specialize=["num_tiles", "num_pairs"])
@no_type_check
def _multiply(
    x_XK,
    weight_E,
    scales_ET4N,
    order_Q,
    expert_T,
    begin_T,
    count_T,
    sums_PQN,
    num_tiles,
    num_pairs,
    N: tl.constexpr,
    K: tl.constexpr,
    PARTS: tl.constexpr,
    ALL_PARTS: tl.constexpr,
    PAIRS_PER_X: tl.constexpr,
    BLOCKS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    """One tile of pairs and outputs. Tiles of one expert are together, as its weights are."""
    tile, rest = tl.program_id(0) % num_tiles, tl.program_id(0) // num_tiles
    count = tl.load(count_T + tile)
    if count == 0:
        return
    output_tiles = tl.cdiv(N, OUTPUTS)
    first_output, part = rest % output_tiles * OUTPUTS, rest // output_tiles
    expert = tl.load(expert_T + tile).to(tl.int64)
    pairs, lines = _pairs_of(order_Q + tl.load(begin_T + tile), count, PAIRS_PER_X, BLOCKS)
    sums = _sum_expert(
        x_XK,
        weight_E,
        scales_ET4N,
        expert,
        lines,
        first_output,
        part,
        N,
        K,
        PARTS,
        ALL_PARTS,
        BLOCKS,
        OUTPUTS,
    )
    sums_PQN += part.to(tl.int64) * num_pairs * N
    keep_sums(sums_PQN, N, None, pairs, sums, first_output, N, BLOCKS, OUTPUTS, False)


@triton.jit
@no_type_check
def _sum_expert(
    x_XK,
    weight_E,
    scales_ET4N,
    expert,
    lines,
    first_output,
    part,
    N: tl.constexpr,
    K: tl.constexpr,
    PARTS: tl.constexpr,
    ALL_PARTS: tl.constexpr,
    BLOCKS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    """Sum of one expert over one part of the inputs or over all, [16, N] a block."""
    if scales_ET4N is None:
        weight_NK = weight_E + expert * (N * K)
        sums = sum_dense(
            x_XK, weight_NK, lines, first_output, part, N, K, PARTS, ALL_PARTS, BLOCKS, OUTPUTS
        )
    else:
        STEPS: tl.constexpr = (K + _STEP - 1) // _STEP
        sums = sum_int4(
            x_XK,
            weight_E + expert * (N * STEPS * 32),
            scales_ET4N + expert * (N * STEPS * 4),
            lines,
            first_output,
            part,
            N,
            K,
            PARTS,
            ALL_PARTS,
            BLOCKS,
            OUTPUTS,
        )
    return sums


@triton.jit
@no_type_check
def _pairs_of(order_Q, count, PAIRS_PER_X: tl.constexpr, BLOCKS: tl.constexpr):
    """Return the numbers of a tile's pairs and of their x, [16] a block."""
    pairs, lines = (), ()
    for block in tl.static_range(BLOCKS):
        places = block * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
        pair = tl.load(order_Q + places, mask=places < count, other=-1).to(tl.int64)
        pairs = pairs + (pair,)
        lines = lines + (tl.where(pair < 0, -1, pair // PAIRS_PER_X),)
    return pairs, lines


@triton.jit
@no_type_check
def _added(sums_PQN, places, there, size, PARTS: tl.constexpr):
    """The sum of all parts in their order, rounded."""
    total = tl.load(sums_PQN + places, mask=there, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        total += tl.load(sums_PQN + part * size + places, mask=there, other=0.0)
    return total.to(tl.bfloat16).to(tl.float32)


@triton.jit(do_not_specialize=["num_pairs"])
@no_type_check
def _activate_pairs(
    gate_up_PQN,
    experts_RC,
    activation_QF,
    num_pairs,
    F: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """silu(gate) up of one pair, the activation rounded before the product."""
    pair = tl.program_id(0).to(tl.int64)
    if tl.load(experts_RC + pair) < 0:
        return
    outputs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real, size = outputs < F, num_pairs.to(tl.int64) * (2 * F)
    gate = _added(gate_up_PQN, pair * (2 * F) + outputs, real, size, PARTS)
    up = _added(gate_up_PQN, pair * (2 * F) + F + outputs, real, size, PARTS)
    activation = (gate / (1 + tl.exp(-gate))).to(tl.bfloat16).to(tl.float32)
    tl.store(activation_QF + pair * F + outputs, (activation * up).to(tl.bfloat16), mask=real)


@triton.jit(do_not_specialize=["num_rows"])
@no_type_check
def _mix(
    down_PQH,
    experts_RC,
    weights_RC,
    shared_RH,
    out_RH,
    num_rows,
    H: tl.constexpr,
    CHOICES: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The outputs of one row's choices times their weights, added in order, and the shared one."""
    row = tl.program_id(0).to(tl.int64)
    outputs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real, size = outputs < H, num_rows.to(tl.int64) * (CHOICES * H)
    total = tl.zeros([BLOCK], tl.float32)
    for choice in tl.static_range(CHOICES):
        pair = row * CHOICES + choice
        is_one = tl.load(experts_RC + pair) >= 0
        y = _added(down_PQH, pair * H + outputs, real & is_one, size, PARTS)
        total += tl.where(is_one, tl.load(weights_RC + pair), 0.0) * y
    if HAS_SHARED:
        total += tl.load(shared_RH + row * H + outputs, mask=real, other=0.0).to(tl.float32)
    tl.store(out_RH + row * H + outputs, total.to(tl.bfloat16), mask=real)
