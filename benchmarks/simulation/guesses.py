"""The text that the target says, and what a drafter guesses of it.

The token at a position is known from the position alone; a drafter's guess is that token as often
as its quality says, and another one otherwise. So trees are verified by agreement, as in life.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from benchmarks.simulation.acceptance import Acceptance
from draft_service.tree_growth import Candidate, Node, TreeGrowth
from protos.messages import DraftTree, Plan, Verdict, VerifyTimings

_TEXT_TOKENS = 64
VOCABULARY = 2 * _TEXT_TOKENS
_LEAST = 1e-6


def said_at(position: int) -> int:
    """Return the token that the target says at a position."""
    return position % _TEXT_TOKENS


def verify(tree: DraftTree, timings: VerifyTimings) -> Verdict:
    """Return the target's verdict: the path of right guesses, and one token more."""
    path: list[int] = []
    node, position = 0, tree.committed_len
    for child in range(1, len(tree.tokens)):
        # Parents precede children, so one pass finds the whole path.
        if tree.parents[child] == node and tree.tokens[child] == said_at(position):
            node, position = child, position + 1
            path.append(child)
    tokens = tuple(said_at(tree.committed_len + i) for i in range(len(path) + 1))
    return Verdict(tree.committed_len, tuple(path), tokens, (0.0,) * len(tokens), timings=timings)


class Guesser:
    """One session's drafter: grows the trees that a real one would, right as often as it is."""

    def __init__(self, acceptance: Acceptance, rng: random.Random) -> None:
        self.acceptance = acceptance
        self._rng = rng

    def tree(self, committed_len: int, plan: Plan) -> DraftTree:
        """Return a tree, without timings."""
        growth = TreeGrowth(plan)
        # Whose path is all right. The root's is.
        right: set[Node | None] = set(growth.frontier)
        while growth.frontier:
            position = committed_len + growth.depth
            children = [self._children(node in right, position, growth) for node in growth.frontier]
            growth.expand(children)
            right = {
                n for n in growth.frontier if n.parent in right and n.token == said_at(position)
            }
        draft = growth.draft()
        return DraftTree(
            committed_len,
            (said_at(committed_len - 1), *draft.tokens),
            (-1, *draft.parents),
            (0.0, *draft.logprobs),
        )

    def _children(self, right: bool, position: int, growth: TreeGrowth) -> Sequence[Candidate]:
        """Guess what follows a node. Confidences are honest where all before was right."""
        first = self._confidence(growth.depth + 1)
        place = self._place_of_truth(first, growth.width) if right else -1
        shares = [first, *self._siblings(1 - first, growth.width - 1)]
        return [
            self._candidate(said_at(position) if i == place else _TEXT_TOKENS + i, share)
            for i, share in enumerate(shares)
        ]

    def _confidence(self, depth: int) -> float:
        mean = min(max(self.acceptance.conditional(depth), _LEAST), 1 - _LEAST)
        certainty = self.acceptance.certainty
        return self._rng.betavariate(mean * certainty, (1 - mean) * certainty)

    def _place_of_truth(self, first: float, width: int) -> int:
        """Return which child is right, -1 for none."""
        if self._rng.random() < first:
            return 0
        if width > 1 and self._rng.random() < self.acceptance.siblings:
            return self._rng.randrange(1, width)
        return -1

    def _siblings(self, rest: float, number: int) -> list[float]:
        return [rest * self.acceptance.siblings / number] * number if number else []

    @staticmethod
    def _candidate(token: int, share: float) -> Candidate:
        logprob = math.log(max(share, _LEAST))
        return Candidate(token, logprob, logprob)
