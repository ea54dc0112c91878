"""How good one drafter's guesses are: by plan, and by what the drafter itself thinks of them.

Sans-I/O. Every draft is judged by the tokens that were committed after it, also what was cut from
it, so nothing need be verified to be known. How a session differs is told in affinity.py.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from gateway.affinity import Diversity
from gateway.plans import CHAINS, TREES, Place, Walk, covers, num_right
from protos.messages import DraftTree, Plan

# Rounds that a mean looks back over.
_WINDOW = 96
# What was learned before a restart counts as so many.
_RESTORED_ROUNDS = 32
_BINS = 10
# As many guesses as a drafter's own probability is worth in a bin.
_PRIOR_GUESSES = 4.0
# Depths from here on are alike.
_DEEPEST = 4


@dataclass
class RightGuesses:
    """Right guesses a round, as a running mean with its spread; `weight` rounds count in it."""

    mean: float = 0.0
    square: float = 0.0
    weight: float = 0.0

    def add(self, right: int) -> None:
        """Take a round in."""
        self.weight = min(self.weight + 1, _WINDOW)
        self.mean += (right - self.mean) / self.weight
        self.square += (right * right - self.square) / self.weight

    def fade(self, rounds: int) -> None:
        """Forget, the more of other rounds were taken in since: new ones count the more."""
        self.weight = max(self.weight * (1 - rounds / _WINDOW), min(self.weight, 1))

    @property
    def error(self) -> float:
        """The mean's standard error. Infinite before two rounds."""
        if self.weight < 2:
            return math.inf
        # Never less than if one round in the window had been another.
        spread = max(self.square - self.mean**2, 1 / self.weight)
        return math.sqrt(spread / self.weight)


class Reliability:
    """How often guesses are right whose parent was, by depth and the drafter's probability."""

    def __init__(self) -> None:
        self._rights: dict[tuple[int, int], RightGuesses] = defaultdict(RightGuesses)

    def add(self, depth: int, probability: float | None, right: bool) -> None:
        """Take a guess in whose parent was right."""
        self._rights[_bin(depth, probability)].add(int(right))

    def of(self, depth: int, probability: float | None) -> float:
        """Return the chance of a guess, should its parent be right.

        A drafter that tells no probability is as good as it was; before anything is known, as bad
        as good.
        """
        found = self._rights[_bin(depth, probability)]
        prior = 0.5 if probability is None else probability
        known, weight = found.mean * found.weight, found.weight + _PRIOR_GUESSES
        return (known + prior * _PRIOR_GUESSES) / weight


def _bin(depth: int, probability: float | None) -> tuple[int, int]:
    place = -1 if probability is None else min(int(probability * _BINS), _BINS - 1)
    return min(depth, _DEEPEST), place


@dataclass
class Acceptance:
    """One drafter, over all sessions."""

    by_plan: dict[Plan, RightGuesses] = field(default_factory=dict)
    _judged_at: dict[Plan, int] = field(default_factory=dict)
    reliability: Reliability = field(default_factory=Reliability)
    diversity: Diversity = field(default_factory=Diversity)
    rounds: int = 0

    def add(self, plan: Plan, tree: DraftTree, seen: Walk) -> None:
        """Take in what became of a whole tree that was grown by `plan`."""
        self._judge(plan, seen.places)
        self._add_guesses(tree, seen)

    def add_none(self, plan: Plan) -> None:
        """Take in a round for which no draft came in time."""
        self._judge(plan, ())

    def _judge(self, plan: Plan, places: Sequence[Place]) -> None:
        self.rounds += 1
        for smaller in _judged_by(plan):
            guesses = self.by_plan.setdefault(smaller, RightGuesses())
            guesses.fade(self.rounds - 1 - self._judged_at.get(smaller, 0))
            guesses.add(num_right(places, smaller))
            self._judged_at[smaller] = self.rounds

    def _add_guesses(self, tree: DraftTree, seen: Walk) -> None:
        """Take in the guesses whose parents were right, and what they were thought to be."""
        right = {place.node: place.depth for place in seen.places}
        for node, parent in enumerate(tree.parents[1:], start=1):
            if parent == 0 or parent in right:
                depth = right.get(parent, 0) + 1
                self.reliability.add(depth, probability(tree, node), node in right)

    def survival(self, tree: DraftTree) -> list[float]:
        """Return the chance of each node, the root's being 1, that all down to it is right."""
        chances, depths = [1.0], [0]
        for node, parent in enumerate(tree.parents[1:], start=1):
            depths.append(depths[parent] + 1)
            own = self.reliability.of(depths[node], probability(tree, node))
            chances.append(chances[parent] * own)
        return chances

    def tells_of(self, plan: Plan) -> bool:
        """Whether a tree of this plan, or of a larger one, was ever judged."""
        return plan in self.by_plan

    def expected(self, plan: Plan) -> tuple[float, float]:
        """Return the right guesses that a plan's trees have, and the standard error of that.

        Depths that were never drafted are taken to be like the deepest ones that were.
        """
        smaller = [other for other in self.by_plan if covers(plan, other)]
        if not smaller:
            return 0.0, math.inf
        # Few rounds may have been unlucky: a tree has all that is right in a smaller one.
        mean = max(self.by_plan[other].mean for other in smaller)
        nearest = max(smaller, key=lambda other: (other == plan, other.top_k, other.steps))
        return _continued(mean, nearest.steps, plan.steps), self.by_plan[nearest].error

    def state(self) -> list[list[float]]:
        """Return what is known as plain values, for JSON."""
        return [
            [plan.steps, plan.top_k, plan.draft_tokens, one.mean, one.square, one.weight]
            for plan, one in self.by_plan.items()
        ]

    def restore(self, state: list[list[float]]) -> None:
        """Begin with what `state` returned. It soon gives way to what is seen."""
        for steps, top_k, draft_tokens, mean, square, weight in state:
            plan = Plan(int(steps), int(top_k), int(draft_tokens))
            self.by_plan[plan] = RightGuesses(mean, square, min(weight, _RESTORED_ROUNDS))
        self.rounds = int(max((one.weight for one in self.by_plan.values()), default=0))
        self._judged_at = dict.fromkeys(self.by_plan, self.rounds)


def probability(tree: DraftTree, node: int) -> float | None:
    """Return the drafter's own probability of a node given its parent, if it tells one."""
    return math.exp(min(tree.logprobs[node], 0.0)) if tree.logprobs else None


@lru_cache(256)
def _judged_by(plan: Plan) -> frozenset[Plan]:
    """Return the plans to choose from whose trees a plan's trees contain: not any that is asked."""
    return frozenset({other for other in (*CHAINS, *TREES) if covers(plan, other)})


def _continued(mean: float, known_steps: int, steps: int) -> float:
    """Return the right guesses of deeper trees, each step surviving as the mean one did."""
    share = mean / (1 + mean)
    return mean + sum(share**depth for depth in range(known_steps + 1, steps + 1))
