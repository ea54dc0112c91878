"""Acceptance by decree, for measurements: what a system costs apart from how good its drafter is.

A session accepts the first nodes of its trees, right or wrong, as many as make the accept length
the one that was asked for. Its text is nobody's. Sans-I/O: knows neither tensors nor sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels import tree
from protos.messages import MAX_TREE_NODES


@dataclass
class ForcedAcceptance:
    """How many drafts the next verdict accepts.

    What a verdict rounds off is added to the next, so the average is exact. What a tree is too
    shallow for is lost: a later tree does not make up for it.
    """

    accept_length: float
    _carried: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.accept_length <= MAX_TREE_NODES:
            raise ValueError(
                f"forced_accept_length must be in [1, {MAX_TREE_NODES}], got {self.accept_length}"
            )

    def path(self, parents: Sequence[int]) -> list[int]:
        """Return the nodes of a tree that are accepted, without the root."""
        return tree.first_path(parents)[: int(self._due) - 1]

    def committed(self) -> None:
        """Note that a verdict has accepted its path."""
        self._carried = self._due % 1

    @property
    def _due(self) -> float:
        return self._carried + self.accept_length
