"""A draft with its root, level by level as it was grown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from draft_service.drafters import Draft
from kernels import tree
from protos.messages import Plan


def whole_plan(steps: int, width: int) -> Plan:
    """Return a plan that keeps all nodes that are grown."""
    return Plan(steps, width, 1 + width + (steps - 1) * width**2)


@dataclass(frozen=True)
class GrownTree:
    """Nodes, the root first. A parent comes before its children, and the root has none."""

    parents: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]

    @classmethod
    def of(cls, draft: Draft, root: int) -> GrownTree:
        return cls((-1, *draft.parents), (root, *draft.tokens), (0.0, *draft.logprobs))

    def is_whole(self, plan: Plan, vocab_size: int) -> bool:
        """Whether it is all that a plan of `whole_plan` grows, of tokens that there are."""
        if not all(-1 < parent < node for node, parent in enumerate(self.parents[1:], start=1)):
            return False
        sizes = [len(level) for level in self.levels()]
        width, below = plan.top_k, plan.top_k**2
        return (
            sizes == [1, width, *[below] * (plan.steps - 1)]
            and {len(tokens) for tokens in self.children().values()} == {width}
            and all(0 <= token < vocab_size for token in self.tokens)
        )

    def levels(self) -> list[list[int]]:
        """Return the nodes of each depth."""
        depths = tree.depths(self.parents)
        return [
            [node for node, depth in enumerate(depths) if depth == level]
            for level in range(max(depths) + 1)
        ]

    def children(self) -> dict[int, list[int]]:
        """Return the tokens of the children of each node that has some."""
        found: dict[int, list[int]] = {}
        for parent, token in zip(self.parents[1:], self.tokens[1:], strict=True):
            found.setdefault(parent, []).append(token)
        return found

    def rows(self) -> Iterator[tuple[list[int], list[tuple[int, ...]]]]:
        """Yield the nodes of each level below the root, with their paths as rows of all levels."""
        levels = self.levels()[1:]
        order = [node for level in levels for node in level]
        row_of = {0: -1} | {node: row for row, node in enumerate(order)}
        paths = tree.paths([row_of[self.parents[node]] for node in order])
        for level in levels:
            yield level, [paths[row_of[node]] for node in level]

    def says_what(self, other: GrownTree) -> bool:
        """Whether both have the same nodes, in whichever order."""
        return self._texts() == other._texts()

    def _texts(self) -> set[tuple[int, ...]]:
        """Return what each node says, from the root on."""
        return {tuple(self.tokens[node] for node in path) for path in tree.paths(self.parents)}
