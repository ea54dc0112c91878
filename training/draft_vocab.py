"""The tokens that a drafter may guess: those that the target chooses most often.

A head over all of a target's vocabulary is most of a drafter's cost, and most of it is never used.

Legend: V target's vocabulary, N drafter's vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DraftVocab:
    """Token ids in ascending order, and the share of what the target chose that they cover."""

    ids_N: torch.Tensor
    vocab_size: int
    coverage: float

    @classmethod
    def choose(cls, weights_V: torch.Tensor, counts_V: torch.Tensor, size: int) -> DraftVocab:
        """Keep the `size` tokens of most weight, of equals those of lower id."""
        vocab_size = len(weights_V)
        if not 1 <= size <= vocab_size:
            raise ValueError(f"draft_vocab_size must be in [1, {vocab_size}], got {size}")
        return cls.of(
            weights_V.argsort(descending=True, stable=True)[:size].sort().values, counts_V
        )

    @classmethod
    def of(cls, ids_N: torch.Tensor, counts_V: torch.Tensor) -> DraftVocab:
        """Take these tokens, as a drafter has them that exists already."""
        coverage = counts_V[ids_N].sum() / counts_V.sum().clamp(min=1)
        return cls(ids_N, len(counts_V), float(coverage))

    def draft_ids(self) -> torch.Tensor:
        """Return the draft token of each of the target's tokens, [V]; -1 where there is none."""
        draft_V = torch.full((self.vocab_size,), -1)
        draft_V[self.ids_N] = torch.arange(len(self.ids_N))
        return draft_V

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return `d2t` (offsets) and `t2d` (a mask) as checkpoints have them.

        There are none if the drafter knows all tokens: engines then expect none.
        """
        if len(self.ids_N) == self.vocab_size:
            return {}
        t2d_V = torch.zeros(self.vocab_size, dtype=torch.bool)
        t2d_V[self.ids_N] = True
        return {"d2t": self.ids_N - torch.arange(len(self.ids_N)), "t2d": t2d_V}
