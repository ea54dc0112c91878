"""Which rows of a batch are judged, side by side: the head is too large for all the others.

Products of ever new sizes are slow on CPUs, where code is generated for each; so rows come in
blocks, those of a batch and those that are judged.

Legend: B samples, L rows, R judged rows, S steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from training.dataset import Batch

ROW_BLOCK = 32
_JUDGED_BLOCK = 16


def in_row_blocks(batch: Batch) -> Batch:
    """Return a batch whose rows, which are two less than its tokens, are whole blocks."""
    more = -(batch.tokens_BL.shape[1] - 2) % ROW_BLOCK
    return Batch(
        F.pad(batch.tokens_BL, (0, more)),
        F.pad(batch.taps_BLX, (0, 0, 0, more)),
        F.pad(batch.answered_BL, (0, more)),
    )


@dataclass(frozen=True)
class Judged:
    """The rows that are judged at one step at least."""

    places_R: torch.Tensor
    """Where they lie among the rows of all samples."""
    at_SR: torch.Tensor
    """Whether they are judged at a step. A block is filled up with rows that never are."""
    shape: torch.Size

    @classmethod
    def of(cls, judged_BL: torch.Tensor, num_steps: int) -> Judged:
        """Take these rows. The first rows have no chain that is so long as a late step's."""
        places = judged_BL.flatten().nonzero()[:, 0]
        more = -len(places) % _JUDGED_BLOCK
        steps_S1 = torch.arange(num_steps, device=places.device)[:, None]
        at_SR = places % judged_BL.shape[1] >= steps_S1
        return cls(F.pad(places, (0, more)), F.pad(at_SR, (0, more)), judged_BL.shape)

    def rows(self, x_BL: torch.Tensor) -> torch.Tensor:
        """Return the judged rows of what has one for every row, [R, ...]."""
        return x_BL.flatten(0, 1).index_select(0, self.places_R)

    def put_back(self, x_SR: torch.Tensor) -> torch.Tensor:
        """Return judged rows' truths where they lie, [S, B, L]; what is not judged is false."""
        found_SL = x_SR.new_zeros(len(x_SR), self.shape.numel())
        real_R = self.at_SR[0]
        found_SL[:, self.places_R[real_R]] = x_SR[:, real_R]
        return found_SL.unflatten(1, self.shape)
