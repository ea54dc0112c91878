"""The ratio of two sums over rounds, and how far it can be trusted.

Rounds of one session are alike: one text, one way of sampling. So they are no independent draws;
sessions are. The spread is that between sessions (the linearised variance of a ratio, clustered),
with Student's t for few of them. A mean is the ratio of a sum to a count. Sans-I/O.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple


class Interval(NamedTuple):
    """Where a value lies with some confidence."""

    low: float
    high: float


class ClusteredRatio:
    """Grows by one round of one session at a time; keeps sums, and two numbers a running session.

    `numerator / denominator`, the latter of positive terms.
    """

    def __init__(self) -> None:
        self.numerator = 0.0
        self.denominator = 0.0
        self.num_sessions = 0
        self._running: dict[str, tuple[float, float]] = {}
        # Over sessions, of their own sums: numerator squared, product, denominator squared.
        self._squares = (0.0, 0.0, 0.0)

    @property
    def value(self) -> float:
        """The ratio; 0 before the first round."""
        return self.numerator / self.denominator if self.denominator else 0.0

    @property
    def variance(self) -> float:
        """The variance of the ratio as an estimate; infinite with less than two sessions."""
        if self.num_sessions < 2:
            return math.inf
        square, product, weight = self._squares
        # The sum over sessions of (numerator - value * denominator) squared.
        spread = max(0.0, square - 2 * self.value * product + self.value**2 * weight)
        return spread * self.num_sessions / (self.num_sessions - 1) / self.denominator**2

    def add(self, session_id: str, numerator: float, denominator: float = 1.0) -> None:
        """Add a round."""
        before = self._running.get(session_id)
        if before is None:
            self.num_sessions += 1
        n, d = before or (0.0, 0.0)
        new_n, new_d = n + numerator, d + denominator
        square, product, weight = self._squares
        self._squares = (
            square + new_n**2 - n**2,
            product + new_n * new_d - n * d,
            weight + new_d**2 - d**2,
        )
        self._running[session_id] = new_n, new_d
        self.numerator += numerator
        self.denominator += denominator

    def end(self, session_id: str) -> None:
        """No more rounds of this session will come."""
        self._running.pop(session_id, None)

    def interval(self, confidence: float = 0.95) -> Interval:
        """Return where the ratio lies, both ends together wrong with 1 - confidence."""
        if self.num_sessions < 2:
            return Interval(-math.inf, math.inf)
        quantile = student_t_quantile((1 + confidence) / 2, self.num_sessions - 1)
        reach = quantile * math.sqrt(self.variance)
        return Interval(self.value - reach, self.value + reach)


def student_t_quantile(probability: float, freedom: int) -> float:
    """Return a quantile of Student's t for a probability in (0.5, 0.995], to within a percent.

    Exact for one and two degrees of freedom, beyond them Cornish and Fisher's series. (Abramowitz
    and Stegun, 26.7.5.)
    """
    if freedom == 1:
        return math.tan(math.pi * (probability - 0.5))
    if freedom == 2:
        return (2 * probability - 1) / math.sqrt(2 * probability * (1 - probability))
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, start=1))
