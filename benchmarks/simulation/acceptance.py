"""How often a drafter is right, by depth."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

# Kimi-K2.5 with lightseekorg/kimi-k2.5-eagle3-mla, thinking, SPEED-Bench coding: 1.83 2.43 2.88
# 3.24 3.46 3.62 3.71 3.77 tokens a round at 1 to 8 steps (InferenceX, golden_al_distribution).
KIMI_K2_5_SURVIVAL = (0.83, 0.60, 0.45, 0.36, 0.22, 0.16, 0.09, 0.06)


@dataclass(frozen=True)
class Acceptance:
    """A drafter's quality on one kind of text.

    `survival[i]` is the share of rounds in which the draft at depth i + 1 is accepted, if it is
    there. Deeper than that, a draft is as often right after a right one as at the last depth known.
    """

    survival: tuple[float, ...] = KIMI_K2_5_SURVIVAL
    siblings: float = 0.0
    """Share of a first guess's misses that the other children of its node catch together."""
    certainty: float = 2.0
    """How alike the drafter's confidences are. Large: it always names the average."""

    def __post_init__(self) -> None:
        falling = all(0 <= b <= a for a, b in itertools.pairwise((1.0, *self.survival)))
        if not self.survival or not falling:
            raise ValueError(f"acceptance by depth must fall from at most 1, got {self.survival}")
        if not 0 <= self.siblings <= 1:
            raise ValueError(f"siblings must be in [0, 1], got {self.siblings}")

    def conditional(self, depth: int) -> float:
        """Return how often a draft at a depth, from 1 on, is right if those before it are."""
        known = min(depth, len(self.survival))
        before = (1.0, *self.survival)[known - 1]
        return self.survival[known - 1] / before if before else 0.0

    def accept_length(self, steps: int) -> float:
        """Return tokens a round for a chain of so many steps: accepted drafts and the bonus."""
        total, alive = 1.0, 1.0
        for depth in range(1, steps + 1):
            alive *= self.conditional(depth)
            total += alive
        return total

    def scaled_to(self, accept_length: float, steps: int) -> Acceptance:
        """Return a drafter of the same shape with a given accept length at so many steps.

        Every conditional share is multiplied by one number. Raises ValueError if there is none.
        """
        if not 1 <= accept_length < 1 + steps:
            raise ValueError(
                f"accept length at {steps} steps must be in [1, {1 + steps}), got {accept_length}"
            )
        low, high = 0.0, 1 / min(self.conditional(d + 1) or 1.0 for d in range(len(self.survival)))
        for _ in range(60):
            middle = (low + high) / 2
            short = self._times(middle).accept_length(steps) < accept_length
            low, high = (middle, high) if short else (low, middle)
        return self._times(high)

    def _times(self, factor: float) -> Acceptance:
        survival, alive = [], 1.0
        for depth in range(1, len(self.survival) + 1):
            alive *= min(self.conditional(depth) * factor, 1.0)
            survival.append(alive)
        return replace(self, survival=tuple(survival))
