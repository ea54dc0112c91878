"""What a mixture of experts writes on its way, and how its rows and inputs are divided.

Few rows have tiles of few pairs; prompts, where an expert has more, have wide ones, and one program
for all parts of the inputs. A tile changes no bit, and parts depend on the weight alone.

Legend: R rows, C choices of a row, Q = R C pairs, P parts of the inputs, N outputs, H hidden, F
width of an expert, B bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.gpu import linear, w4_linear
from kernels.gpu.expert_plan import ExpertPlan, plan_pieces
from kernels.gpu.expert_weights import ExpertWeight, num_experts
from kernels.gpu.packed_int4 import PackedInt4
from kernels.gpu.packed_memory import Layout, Piece, Pieces
from kernels.gpu.row_blocks import Tile, num_parts

_FEW_PAIRS = 16
"""An expert's share of the pairs from which on tiles are wide."""


@dataclass(frozen=True)
class ExpertScratch:
    """What a step of so many rows writes on its way. Sums are bfloat16 if none is added to them."""

    plan: ExpertPlan
    tile: Tile
    gate_up_PQN: torch.Tensor
    activation_QF: torch.Tensor
    down_PQH: torch.Tensor


def new_scratch(
    rows: int, choices: int, gate_up: ExpertWeight, down: ExpertWeight
) -> ExpertScratch:
    """Return scratch for steps of exactly so many rows."""
    num_bytes = scratch_bytes(rows, choices, gate_up, down)
    memory_B = torch.zeros(num_bytes, dtype=torch.uint8, device=gate_up[0].device)
    return scratch_in(memory_B, rows, choices, gate_up, down)


def scratch_bytes(rows: int, choices: int, gate_up: ExpertWeight, down: ExpertWeight) -> int:
    """Return how many bytes `scratch_in` needs for so many rows. Fewer may need more."""
    return Layout(_pieces(rows, choices, gate_up, down)).num_bytes


def scratch_in(
    memory_B: torch.Tensor, rows: int, choices: int, gate_up: ExpertWeight, down: ExpertWeight
) -> ExpertScratch:
    """Return scratch for steps of exactly so many rows, in the first bytes of a memory."""
    tile = tile_for(rows * choices, gate_up)
    order_Q, expert_T, begin_T, count_T, *sums = (
        Layout(_pieces(rows, choices, gate_up, down)).views(memory_B).values()
    )
    plan = ExpertPlan(order_Q, expert_T, begin_T, count_T, tile.rows)
    return ExpertScratch(plan, tile, *sums)


def _pieces(rows: int, choices: int, gate_up: ExpertWeight, down: ExpertWeight) -> Pieces:
    """Return what a scratch consists of."""
    pairs = rows * choices
    tile = tile_for(pairs, gate_up)

    def sums(weight: ExpertWeight) -> Piece:
        parts = 1 if tile.one_program else parts_of(weight, choices)
        dtype = torch.bfloat16 if parts == 1 else torch.float32
        return Piece(dtype, (parts, pairs, weight.num_outputs))

    return {
        **plan_pieces(pairs, num_experts(gate_up), tile.rows),
        "gate_up_PQN": sums(gate_up),
        "activation_QF": Piece(torch.bfloat16, (pairs, down.num_inputs)),
        "down_PQH": sums(down),
    }


def tile_for(num_pairs: int, weight: ExpertWeight) -> Tile:
    """Return the tile for so many pairs."""
    kernels = w4_linear if isinstance(weight, PackedInt4) else linear
    return kernels.NARROW if num_pairs <= _FEW_PAIRS * num_experts(weight) else kernels.PROMPT


def parts_of(weight: ExpertWeight, choices: int) -> int:
    """Return into how many parts the inputs are divided: a row alone has as many experts."""
    narrow = tile_for(0, weight)
    return num_parts(choices * weight.num_outputs, weight.num_inputs, narrow.outputs)
