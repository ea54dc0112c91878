"""A kernel over buffers that stay, what it must leave there, and what it has to move.

What is exact is computed in float64 on the same device. What is allowed beside it follows from the
roundings that the kernel states, so a case has no tolerance of its own.

Legend: X any shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

ROUNDED = 2**-8
"""What a rounding to bfloat16 changes a number by at most."""
SUMMED = 2**-20
"""Of float32 sums, of the sum of sizes."""


class Sizes(NamedTuple):
    """How large cases are."""

    rows: int
    hidden: int
    inner: int
    layers: int
    vocabulary: int
    draft_vocabulary: int
    experts: int
    expert_width: int
    context: int


KIMI = Sizes(16, 7168, 18432, 61, 163840, 32000, 48, 2048, 8192)
"""Kimi-K2.5, an eighth of its experts and heads: one GPU of eight."""
SMALL = Sizes(3, 256, 320, 2, 2100, 1100, 4, 128, 100)
"""For Triton's interpreter, where this is tested."""


@dataclass(frozen=True)
class Case:
    """`excess` is the largest error over what is allowed, after a launch: at most 1 is right."""

    name: str
    launch: Callable[[], None]
    results: tuple[torch.Tensor, ...]
    """What only a launch writes."""
    excess: Callable[[], float]
    num_bytes: int
    """What is read and written at least once."""

    def checked(self) -> float:
        """Launch once, over results that hold nothing right; return the excess."""
        for result in self.results:
            result.fill_(math.nan if result.is_floating_point() else -1)
        self.launch()
        return self.excess()


def excess_of(found_X: torch.Tensor, exact_X: torch.Tensor, allowed_X: torch.Tensor) -> float:
    """Return the largest |found - exact| / allowed; infinity if something is no number."""
    error_X = (found_X.double() - exact_X.double()).abs()
    ratio = (error_X / allowed_X.double().clamp(min=1e-300)).amax()
    return math.inf if ratio.isnan() else float(ratio)


def excess_of_equal(found_X: torch.Tensor, expected_X: torch.Tensor) -> float:
    """Return 0 for equal tensors, infinity for others."""
    return 0.0 if torch.equal(found_X, expected_X) else math.inf


def bytes_of(*tensors: torch.Tensor | None) -> int:
    """Return how many bytes tensors have together."""
    return sum(x.numel() * x.element_size() for x in tensors if x is not None)


def normal(*shape: int, device: torch.device) -> torch.Tensor:
    """Return random bfloat16."""
    return torch.randn(shape, device=device).bfloat16()
