"""Trees grow from the last real rows, level by level, and the best of all nodes are drafted.

The last real rows give the roots' children for nothing; each further level runs its frontier, whose
rows lie behind the real ones and are forgotten afterwards.

Legend: R = S W rows of a level, S trees, W places of a frontier, H hidden.
"""

from __future__ import annotations

import torch

from draft_service.drafters.eagle3_gpu.choosing import Choosing
from draft_service.drafters.eagle3_gpu.inputs import Inputs
from draft_service.drafters.eagle3_gpu.layer import States, run_layer, states_of
from draft_service.drafters.eagle3_gpu.weights import GpuWeights
from draft_service.drafters.eagle3_gpu.workspace import Cache, Workspace, new_tree_buffers
from draft_service.graphs import Bucket
from kernels.gpu.attention_plan import plan_attention
from kernels.gpu.attention_shape import AttentionPlan, StepRows
from kernels.gpu.decoder import Places
from kernels.gpu.draft_tree import DraftTrees, draft_trees
from kernels.gpu.frontier import Frontier, Plans, grow
from kernels.gpu.frontier_rows import Roots, frontier_rows
from kernels.gpu.tap_gather import gather_taps


class Growing:
    """The second part of a step."""

    def __init__(
        self,
        weights: GpuWeights,
        cache: Cache,
        space: Workspace,
        inputs: Inputs,
        plan: AttentionPlan,
        bucket: Bucket,
    ) -> None:
        """`space` has the rows of a level."""
        self._weights, self._cache, self._space, self._inputs = weights, cache, space, inputs
        self._depth = bucket.depth
        self._buffers = buffers = new_tree_buffers(bucket, weights.device)
        self._plans = Plans(inputs.width_N, inputs.steps_N)
        self._roots = Roots(inputs.real_len_N, inputs.length_N, inputs.pages_NB)
        self._of_roots = Choosing.of_roots(inputs, bucket.width)
        self._of_frontier = self._of_roots.of_frontier(bucket.width, buffers.rows.draw_positions_R)
        rows = StepRows(
            buffers.session_R,
            buffers.rows.positions_R,
            buffers.rows.ancestors_R,
            inputs.first_node_N1,
            inputs.real_len_N,
            inputs.pages_NB,
        )
        self._places = Places(buffers.rows.text_positions_R, buffers.rows.slots_R, rows, plan)

    def run(self, last_SH: torch.Tensor, trees: DraftTrees) -> None:
        """Grow from the states of the last real rows, and write the trees."""
        of_roots = self._space.rows(len(last_SH))
        states = states_of(self._weights, last_SH, of_roots)
        found = self._of_roots.run(self._weights, states.read_RH, of_roots)
        self._of_frontier.spread(self._of_roots)
        before, after = None, self._buffers.frontiers[0]
        grow(found, self._plans, self._buffers.nodes, before, after, 1)
        for depth in range(1, self._depth):
            states = self._run_level(states, after, depth)
            found = self._of_frontier.run(self._weights, states.read_RH, self._space)
            before, after = after, self._buffers.frontiers[depth % 2]
            grow(found, self._plans, self._buffers.nodes, before, after, depth + 1)
        inputs = self._inputs
        draft_trees(self._buffers.nodes, inputs.draft_tokens_N, inputs.root_N, trees)

    def _run_level(self, parents: States, frontier: Frontier, depth: int) -> States:
        """Run a frontier of this depth, each node on the state of its parent's row."""
        frontier_rows(frontier, self._roots, depth, self._buffers.rows)
        plan_attention(self._places.rows, self._places.plan)
        # The level before lies in the other one.
        h_RH = (self._space.h_RH, self._space.other_h_RH)[depth % 2]
        gather_taps(parents.fed_RH[None], frontier.sources_SW.flatten(), h_RH[:, None])
        tokens_R = frontier.tokens_SW.flatten()
        return run_layer(
            self._weights, tokens_R, h_RH, self._places, self._cache.pages, self._space
        )
