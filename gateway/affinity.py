"""How much better a drafter does in one session than in all of them. Sans-I/O.

What one session shows is luck and what the session is like. How much of it is luck is measured,
too: what prompt lookup finds hangs on whether a text copies, so a few rounds tell; a trained
drafter does much the same everywhere, and a few bad rounds tell nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

# How a session forgets, in a round, and what is learned of all sessions, in a session.
_SESSION_DECAY = 0.95
_DIVERSITY_DECAY = 0.98
_LEAST_EXPECTED = 0.02
# Rounds that are worth what all sessions did: as long as it is not known, for copies are to be
# found early, and at most. That counts for one session of so many rounds of such a variance.
_LEAST_ROUNDS = 4.0
_MOST_ROUNDS = 48.0
_PRIOR_LENGTH = 16.0
_PRIOR_VARIANCE = 0.25


class Factor(NamedTuple):
    """What a round of a session brings over what it would bring elsewhere."""

    mean: float = 1.0
    error: float = 0.0
    """The standard error of that: a session shows little of itself in a few rounds."""


@dataclass
class Affinity:
    """One session's with one drafter: how many guesses were right, and how many usually are.

    A drafter that is hardly ever right may be right all the time in one session: that is what
    copying is. So what is expected weighs as much as some rounds, not as some right guesses.
    """

    own: float = 0.0
    expected: float = 0.0
    rounds: float = 0.0
    rounds_right: float = 0.0
    """Lately, with anything right."""
    total_rounds: int = 0
    total_right: int = 0
    total_square: int = 0
    """Of the right guesses of each round."""
    total_expected: float = 0.0

    def begin(self, *, right: bool) -> None:
        """A round's first guess was right or not; how far it goes on may not be known yet."""
        self.rounds_right = self.rounds_right * _SESSION_DECAY + right

    def add(self, right: int, expected: float) -> None:
        """Take a round in: what was right, and what would have been on average."""
        expected = max(expected, _LEAST_EXPECTED)
        self.rounds = self.rounds * _SESSION_DECAY + 1
        self.own = self.own * _SESSION_DECAY + right
        self.expected = self.expected * _SESSION_DECAY + expected
        self.total_rounds += 1
        self.total_right += right
        self.total_square += right * right
        self.total_expected += expected

    def factor(self, diversity: Diversity) -> Factor:
        """Return what a round of the session brings, of sessions that differ so much."""
        if not self.rounds:
            return Factor()
        usual, prior_rounds = self.expected / self.rounds, diversity.prior_rounds
        weight = self.rounds + prior_rounds
        mean = (self.own / usual + prior_rounds) / weight
        return Factor(mean, math.sqrt(diversity.round_variance / weight) / usual)


@dataclass
class Diversity:
    """How much sessions differ, beside the luck of their rounds. Of one drafter.

    Over n rounds a session's right guesses differ from those expected by (n s^2)^(1/2) by luck, s^2
    being the variance of a round, and by n t because it is another session. What all did is worth
    s^2 / t^2 rounds of its own (empirical Bayes).
    """

    luck: float = _PRIOR_LENGTH * _PRIOR_VARIANCE
    """Sum of n s^2."""
    rounds: float = _PRIOR_LENGTH
    difference: float = _PRIOR_LENGTH**2 * _PRIOR_VARIANCE / _LEAST_ROUNDS
    """Sum of the squared differences, less n s^2: of n^2 t^2."""
    squared_rounds: float = _PRIOR_LENGTH**2

    def add(self, session: Affinity) -> None:
        """A session is over."""
        if session.total_rounds < 2:
            return
        for name in vars(self):
            setattr(self, name, getattr(self, name) * _DIVERSITY_DECAY)
        count = session.total_rounds
        luck = session.total_square - session.total_right**2 / count
        self.luck += luck
        self.rounds += count
        self.difference += (session.total_right - session.total_expected) ** 2 - luck
        self.squared_rounds += count**2

    @property
    def round_variance(self) -> float:
        """Return that of a round's right guesses within a session."""
        return self.luck / self.rounds

    @property
    def prior_rounds(self) -> float:
        """Return how many rounds of a session are worth what all of them did."""
        luck, difference = self.round_variance, self.difference / self.squared_rounds
        if luck >= _MOST_ROUNDS * difference:
            return _MOST_ROUNDS
        return max(luck / difference, _LEAST_ROUNDS)
