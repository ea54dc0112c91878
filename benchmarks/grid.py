"""The settings of a sweep: every tree that steps, top-k and draft tokens ask for, once.

A tree has no more levels than nodes, and no more nodes than its levels take: many settings ask for
the same tree, and are measured as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from protos.messages import Plan


@dataclass(frozen=True)
class Grid:
    """The values that are combined."""

    steps: Sequence[int]
    top_ks: Sequence[int]
    draft_tokens: Sequence[int]

    @property
    def cells(self) -> list[Plan]:
        """All combinations. Raises ValueError naming a value over its limit."""
        return [Plan(*cell) for cell in product(self.steps, self.top_ks, self.draft_tokens)]

    @property
    def trees(self) -> list[Plan]:
        """The smallest plans of all trees that the combinations ask for."""
        return list(dict.fromkeys(tree_of(cell) for cell in self.cells))


def tree_of(plan: Plan) -> Plan:
    """Return the smallest plan that asks for the same tree."""
    drafts = plan.draft_tokens - 1
    if not drafts or not plan.steps:
        return Plan(0, 1, 1)
    steps, top_k = min(plan.steps, drafts), min(plan.top_k, drafts)
    return Plan(steps, top_k, min(plan.draft_tokens, _most_nodes(steps, top_k)))


def _most_nodes(steps: int, top_k: int) -> int:
    """The root, its children, and those of the best `top_k` nodes of every further level."""
    return 1 + top_k + (steps - 1) * top_k**2


def parse_numbers(text: str, name: str) -> list[int]:
    """Return the numbers of a list as 1,2,4. Raises ValueError naming what is wrong."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"{name} must be numbers with commas between them, got {text!r}")
    return [int(part) for part in parts]


def parse_fractions(text: str, name: str) -> list[float]:
    """Return the numbers of a list as 0,0.7. Raises ValueError naming what is wrong."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        message = f"{name} must be numbers with commas between them, got {text!r}"
        raise ValueError(message) from None
