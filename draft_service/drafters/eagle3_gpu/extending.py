"""Rows with real taps, over guessed ones; and the last hidden state of each session.

Legend: R rows, N sessions, H hidden.
"""

from __future__ import annotations

import torch

from draft_service.drafters.eagle3_gpu.inputs import Inputs
from draft_service.drafters.eagle3_gpu.layer import fuse, run_layer
from draft_service.drafters.eagle3_gpu.weights import GpuWeights
from draft_service.drafters.eagle3_gpu.workspace import Cache, Workspace
from kernels.gpu.attention_plan import plan_attention
from kernels.gpu.attention_shape import AttentionPlan, StepRows
from kernels.gpu.decoder import Places
from kernels.gpu.last_states import keep_last_states
from kernels.gpu.row_slots import find_slots


class Extending:
    """The first part of a step."""

    def __init__(
        self,
        weights: GpuWeights,
        cache: Cache,
        space: Workspace,
        inputs: Inputs,
        plan: AttentionPlan,
    ) -> None:
        """`space` has as many rows as the inputs."""
        self._weights, self._cache, self._space, self._inputs = weights, cache, space, inputs
        # A chain: each row sees all before it.
        ancestors_R = torch.full_like(inputs.tokens_R, -1)
        rows = StepRows(
            inputs.session_R,
            inputs.positions_R,
            ancestors_R,
            inputs.first_row_N1,
            inputs.prefix_len_N,
            inputs.pages_NB,
        )
        slots_R = torch.zeros_like(inputs.tokens_R)
        self._places = Places(inputs.text_positions_R, slots_R, rows, plan)

    def run(self, last_NH: torch.Tensor) -> None:
        """Run the rows, and write what each session grows from."""
        weights, inputs, places = self._weights, self._inputs, self._places
        h_RH = fuse(weights, inputs.taps_RX, self._space)
        find_slots(
            inputs.session_R,
            inputs.first_row_N1,
            inputs.prefix_len_N,
            inputs.pages_NB,
            places.slots_R,
        )
        plan_attention(places.rows, places.plan)
        states = run_layer(weights, inputs.tokens_R, h_RH, places, self._cache.pages, self._space)
        keep_last_states(
            states.fed_RH, inputs.last_row_N, inputs.state_N, self._cache.states_PH, last_NH
        )
