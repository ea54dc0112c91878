"""What may follow the rows of a level: the head, and candidates by the target's seed and filters.

Legend: R rows, H hidden, N drafter's vocabulary, S trees, W places of a frontier.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from draft_service.drafters.eagle3_gpu.inputs import Inputs
from draft_service.drafters.eagle3_gpu.weights import GpuWeights
from draft_service.drafters.eagle3_gpu.workspace import Workspace, new_candidates
from kernels.gpu.agreement_sampler import Draw
from kernels.gpu.candidates import Candidates, agreement_candidates
from kernels.gpu.kept_limit import RowFilters
from kernels.gpu.linear import linear


class Choosing(NamedTuple):
    """How each row of a level chooses, and what it chose."""

    filters: RowFilters
    draw: Draw
    found: Candidates

    @classmethod
    def of_roots(cls, inputs: Inputs, width: int) -> Choosing:
        """As the trees choose, a row each."""
        filters = RowFilters(
            inputs.temperature_N, inputs.top_k_N, inputs.top_p_N, inputs.log_min_p_N
        )
        found = new_candidates(len(inputs.seed_N), width, inputs.seed_N.device)
        return cls(filters, Draw(inputs.seed_N, inputs.length_N), found)

    def of_frontier(self, width: int, draw_positions_R: torch.Tensor) -> Choosing:
        """The same for so many rows a tree. `spread` comes before it is used."""
        filters = RowFilters(*(values_S.repeat_interleave(width) for values_S in self.filters))
        seeds_R = self.draw.seeds_R.repeat_interleave(width)
        found = new_candidates(len(seeds_R), width, seeds_R.device)
        return Choosing(filters, Draw(seeds_R, draw_positions_R), found)

    def spread(self, roots: Choosing) -> None:
        """Let the rows of a frontier choose as their trees do."""
        of_trees = *roots.filters, roots.draw.seeds_R
        for values_R, values_S in zip((*self.filters, self.draw.seeds_R), of_trees, strict=True):
            values_R.view(len(values_S), -1).copy_(values_S[:, None])

    def run(self, weights: GpuWeights, read_RH: torch.Tensor, space: Workspace) -> Candidates:
        """Return what may follow each row. The head reads `read_RH`."""
        linear(read_RH, *weights.head, space.logits_RN, space.layer.scratch)
        agreement_candidates(
            space.logits_RN,
            weights.target_ids_N,
            self.filters,
            self.draw,
            space.scratch,
            self.found,
        )
        return self.found
