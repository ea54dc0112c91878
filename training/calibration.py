"""Whether a drafter's probabilities can be believed, and the temperature that makes them so.

Of all drafts to which it gave 80 %, 80 % should be accepted. p becomes sigmoid(logit(p) / T), with
the one T under which the outcomes are likeliest. (Guo et al., arXiv 1706.04599.)

Legend: N drafts, each of which had a right parent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from training.replay import Round

_BINS = 10
_NEARLY = 1e-4


@dataclass(frozen=True)
class Bin:
    """Drafts of about the same probability."""

    drafts: int
    stated: float
    """The mean of their probabilities."""
    accepted: float
    """The share of them that was accepted."""


@dataclass(frozen=True)
class Calibration:
    """Drafts' probabilities against what came of them."""

    probs_N: torch.Tensor
    accepted_N: torch.Tensor
    temperature: float

    @classmethod
    def of(cls, rounds: Iterable[Round]) -> Calibration:
        """Take every draft of a chain whose parent was right: the first wrong one ends it."""
        probs, accepted = [], []
        for one in rounds:
            right = one.scored.accepted
            for depth, logprob in enumerate(one.logprobs[: right + 1]):
                probs.append(logprob)
                accepted.append(depth < right)
        probs_N = torch.tensor(probs, dtype=torch.float64).exp().clamp(_NEARLY, 1 - _NEARLY)
        accepted_N = torch.tensor(accepted, dtype=torch.float64)
        return cls(probs_N, accepted_N, _fit(probs_N, accepted_N))

    @property
    def calibrated_N(self) -> torch.Tensor:  # noqa: N802
        """The probabilities at the temperature that was found."""
        return (self.probs_N.logit() / self.temperature).sigmoid()

    def expected_error(self, probs_N: torch.Tensor) -> float:
        """Return the mean distance between stated and true, weighted by drafts (ECE)."""
        found = self.bins(probs_N)
        total = sum(one.drafts for one in found)
        return sum(one.drafts * abs(one.stated - one.accepted) for one in found) / max(total, 1)

    def bins(self, probs_N: torch.Tensor) -> Sequence[Bin]:
        """Return drafts in bins of equal width of probability; empty ones are left out."""
        places_N = (probs_N * _BINS).long().clamp(max=_BINS - 1)
        return [
            Bin(
                int(inside_N.sum()),
                float(probs_N[inside_N].mean()),
                float(self.accepted_N[inside_N].mean()),
            )
            for place in range(_BINS)
            if bool((inside_N := places_N == place).any())
        ]


def _fit(probs_N: torch.Tensor, accepted_N: torch.Tensor) -> float:
    """Find the temperature by bisection: the likelihood has one peak in 1 / T."""
    logits_N = probs_N.logit()
    low, high = 0.05, 20.0
    for _ in range(60):
        sharpness = (low + high) / 2
        # The derivative of the log-likelihood in 1 / T.
        slope = ((accepted_N - (sharpness * logits_N).sigmoid()) * logits_N).sum()
        low, high = (sharpness, high) if slope > 0 else (low, sharpness)
    return 1 / ((low + high) / 2)
