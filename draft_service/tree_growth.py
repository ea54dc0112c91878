"""How a tree of guesses grows: by the likeliest nodes, as in EAGLE-2.

Each step gives children to the frontier, the `top_k` best nodes of the deepest level; in the end
the best nodes of all levels are kept. A node's score is the sum along its path, so no node is
better than its parent, and the best ones are a tree. Of equals the earlier node is the better one.
(Li et al., "EAGLE-2", arXiv 2406.16858; SGLang grows the same trees.)

Sans-I/O: knows neither tensors nor models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from draft_service.drafters import Draft
from kernels import tree
from protos.messages import Plan


class Candidate(NamedTuple):
    """A token that may follow a node."""

    token: int
    score: float
    """At most 0, of the best child most. -inf (or NaN): it may not."""
    logprob: float


@dataclass(eq=False)
class Node:
    """A guess. `row` counts the nodes whose children were asked for; -1 for the root and others."""

    token: int
    parent: Node | None
    depth: int
    score: float
    logprob: float
    row: int = -1


def max_rows(plan: Plan) -> int:
    """Return how many rows may be run to grow a tree: the root's children take none."""
    depth = min(plan.steps, plan.draft_tokens - 1)
    return max(depth - 1, 0) * _width(plan)


def _width(plan: Plan) -> int:
    """More children of a node, or nodes of a level, than may be kept in all are of no use."""
    return min(plan.top_k, plan.draft_tokens - 1)


class TreeGrowth:
    """A tree of min(draft_tokens, available) nodes, the root and the best that follows it.

    While there is a frontier, `expand` it.
    """

    def __init__(self, plan: Plan) -> None:
        self.width = _width(plan)
        self._max_depth = plan.steps
        self._max_nodes = plan.draft_tokens - 1
        self._row_parents: list[int] = []
        # Best first. What is worse than all of them would not be kept, nor would its children be.
        self._best: list[Node] = []
        root = Node(-1, None, 0, 0.0, 0.0)
        self.frontier: list[Node] = [root] if plan.steps and self._max_nodes else []
        """Nodes whose children come next, best first. At first the root."""

    @property
    def depth(self) -> int:
        """How deep the frontier lies."""
        return self.frontier[0].depth

    def paths(self) -> list[tuple[int, ...]]:
        """Return the rows on the path of each frontier node, from the root's child to itself."""
        return tree.paths(self._row_parents)[-len(self.frontier) :]

    def expand(self, children: Sequence[Sequence[Candidate]]) -> list[int]:
        """Give every frontier node its likeliest children, best first, `width` of them or less.

        Returns the place of each new frontier node's parent in the old frontier.
        """
        parents, depth = self.frontier, self.depth + 1
        grown = [
            Node(child.token, parent, depth, parent.score + child.score, child.logprob)
            for parent, its_children in zip(parents, children, strict=True)
            for child in its_children
            if child.score > -math.inf
        ]
        # A stable order: parents stay before their children.
        ranked = sorted([*self._best, *grown], key=lambda node: -node.score)
        self._best = ranked[: self._max_nodes]
        self.frontier = self._next_frontier(depth)
        return [self._enter(node, parents[0].row) for node in self.frontier]

    def _next_frontier(self, depth: int) -> list[Node]:
        if depth == self._max_depth:
            return []
        # A child comes after the last one if its parent is no better than that.
        full = len(self._best) == self._max_nodes
        least = self._best[-1].score if full else -math.inf
        level = [node for node in self._best if node.depth == depth and node.score > least]
        return level[: self.width]

    def _enter(self, node: Node, first_row: int) -> int:
        """Give a frontier node its row; return its parent's place in the frontier before."""
        assert node.parent is not None, "the root has its row"
        node.row = len(self._row_parents)
        self._row_parents.append(node.parent.row)
        return node.parent.row - first_row

    def draft(self) -> Draft:
        """Return the tree, best nodes first: any first nodes are the best tree of their number."""
        index_of: dict[Node | None, int] = {
            node: index for index, node in enumerate(self._best, start=1)
        }
        return Draft(
            tokens=tuple(node.token for node in self._best),
            parents=tuple(index_of.get(node.parent, 0) for node in self._best),
            logprobs=tuple(node.logprob for node in self._best),
            num_rows=len(self._row_parents),
        )
