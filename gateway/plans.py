"""The plans that a policy chooses from, and what a tree would have been under a smaller one.

Sans-I/O. A tree grown by a plan contains the trees of all smaller plans: the first children of its
nodes, down to a depth, the best nodes only. So every tree tells how all of them would have done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protos.messages import MAX_TREE_NODES, DraftTree, Plan

NO_DRAFTS = Plan(steps=0)
NO_LIMIT = Plan(MAX_TREE_NODES - 1, MAX_TREE_NODES - 1, MAX_TREE_NODES)
_TREE_WIDTH = 4
CHAINS = tuple(Plan(steps, 1, steps + 1) for steps in (1, 2, 3, 4, 5, 7))
TREES = tuple(Plan(steps, _TREE_WIDTH, _TREE_WIDTH * steps + 1) for steps in (1, 2, 3, 4))
# Tells most of a drafter that is not known yet.
EXPLORING = TREES[2]
# The same where many sessions explore together: there a row costs as many times what it costs one.
EXPLORING_TOGETHER = CHAINS[3]


def within(limits: Plan) -> tuple[Plan, ...]:
    """Return the plans cut to a request's limits, small ones first; none if nothing is allowed."""
    cut = [
        Plan(
            min(plan.steps, limits.steps),
            min(plan.top_k, limits.top_k),
            min(plan.draft_tokens, limits.draft_tokens),
        )
        for plan in (*CHAINS, *TREES)
    ]
    return tuple(dict.fromkeys(plan for plan in cut if plan.steps and plan.draft_tokens > 1))


def covers(plan: Plan, smaller: Plan) -> bool:
    """Whether trees of one plan contain those of another."""
    return (
        plan.steps >= smaller.steps
        and plan.top_k >= smaller.top_k
        and plan.draft_tokens >= smaller.draft_tokens
    )


@dataclass(frozen=True)
class Place:
    """Where a right guess stood in its tree: how deep, as which child, as which node."""

    depth: int
    rank: int
    node: int

    def is_in(self, plan: Plan) -> bool:
        """Whether a smaller plan's tree would have had it. A chain has room for all its nodes."""
        position = self.depth if plan.top_k == 1 else self.node
        return self.depth <= plan.steps and self.rank < plan.top_k and position < plan.draft_tokens


def num_right(places: Sequence[Place], plan: Plan) -> int:
    """Return how many of the right guesses, from the root down, a plan's tree would have had."""
    for count, place in enumerate(places):
        if not place.is_in(plan):
            return count
    return len(places)


@dataclass(frozen=True)
class Walk:
    """How far a tree agrees with the text that was committed after its root.

    `places` are the right guesses from the root down. `decided` unless the text is too short to
    tell: it agrees to its end, and the tree goes on.
    """

    places: tuple[Place, ...]
    decided: bool


def walk(tree: DraftTree, tokens: Sequence[int]) -> Walk:
    """Compare a tree with the committed tokens, of which it knew the first `committed_len`."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(tree.parents[1:], start=1):
        children.setdefault(parent, []).append(node)
    places: list[Place] = []
    at = 0
    for token in tokens[tree.committed_len :]:
        siblings = children.get(at, [])
        right = [node for node in siblings if tree.tokens[node] == token]
        if not right:
            return Walk(tuple(places), decided=True)
        at = right[0]
        places.append(Place(len(places) + 1, siblings.index(at), at))
    return Walk(tuple(places), decided=at not in children)
