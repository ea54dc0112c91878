"""What something costs by how much of it there is: a line through measured points.

Sans-I/O. Each point is a running mean. It follows what is new the faster the longer it was not
seen, so that a rare measurement counts as much as many frequent ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

# The share of a measurement in a point that is seen all the time.
_LEAST_SHARE = 0.08
# Measurements of others after which what a point was is forgotten.
_STALE_AFTER = 128
# What is longer by more than this factor is the machine's hiccup: it counts as so much longer.
_HICCUP = 2.0


@dataclass
class Average:
    """A running mean of positive values that no single large one can throw off.

    `weight` is how many values it rests on.
    """

    value: float = 0.0
    weight: float = 0.0

    def add(self, value: float, least_share: float = _LEAST_SHARE) -> None:
        """Take a value in. The first ones count alike."""
        if self.weight:
            value = min(value, self.value * _HICCUP)
        self.weight += 1
        self.value += (value - self.value) * max(1 / self.weight, least_share)

    def fade(self, share: float) -> None:
        """Forget a share of what the value rests on, 1 being all: new ones count the more."""
        self.weight = max(min(self.weight, 1 / _LEAST_SHARE) * (1 - share), min(self.weight, 1))


@dataclass
class _Point:
    mean: Average
    seen_at: int


class Curve:
    """Cost by amount, in the unit of what is added; never falling with the amount.

    `slope` is the cost of one more, as a share of the cost of one, until two amounts were measured.
    """

    def __init__(self, slope: float) -> None:
        self._slope = slope
        self._points: dict[int, _Point] = {}
        # The points by amount, rising. None: to be drawn anew.
        self._line: list[tuple[int, float]] | None = None
        self._clock = 0

    def __bool__(self) -> bool:
        """Whether anything was measured."""
        return bool(self._points)

    def add(self, amount: int, cost: float) -> None:
        """Take in what `amount` cost. Amounts are kept apart as far as it matters."""
        self._clock += 1
        self._line = None
        point = self._points.setdefault(_rounded(amount), _Point(Average(), self._clock))
        point.mean.fade((self._clock - point.seen_at) / _STALE_AFTER)
        point.mean.add(cost)
        point.seen_at = self._clock

    def at(self, amount: float) -> float:
        """Return the cost of `amount`; 0 as long as nothing was measured."""
        if not self._points:
            return 0.0
        points = self._drawn()
        for (x0, y0), (x1, y1) in pairwise(points):
            if amount <= x1:
                return y0 + (y1 - y0) * max(amount - x0, 0) / (x1 - x0)
        last_x, last_y = points[-1]
        return last_y + self._slope_after(points) * (amount - last_x)

    def points(self) -> dict[int, float]:
        """Return the measured points."""
        return {amount: point.mean.value for amount, point in self._points.items()}

    def restore(self, points: dict[int, float]) -> None:
        """Begin with points of before. They give way to measurements at once."""
        self._line = None
        for amount, cost in points.items():
            self._points[amount] = _Point(Average(cost, 1), self._clock - _STALE_AFTER)

    def _drawn(self) -> list[tuple[int, float]]:
        """Return the points by amount. Where one contradicts a newer one, it gives way."""
        if self._line is None:
            drawn: dict[int, float] = {}
            for amount in sorted(self._points, key=lambda one: -self._points[one].seen_at):
                least = max((y for x, y in drawn.items() if x < amount), default=0.0)
                most = min((y for x, y in drawn.items() if x > amount), default=math.inf)
                drawn[amount] = min(max(self._points[amount].mean.value, least), most)
            self._line = sorted(drawn.items())
        return self._line

    def _slope_after(self, points: list[tuple[int, float]]) -> float:
        """Return the cost of one more behind the last point, or before the only one."""
        (first_x, first_y), (last_x, last_y) = points[0], points[-1]
        if first_x == last_x:
            return self._slope * first_y / (1 + self._slope * (first_x - 1))
        return (last_y - first_y) / (last_x - first_x)


def _rounded(amount: int) -> int:
    """Return the amount, from 8 on rounded to an eighth of its power of two."""
    step = 1 << max(amount.bit_length() - 4, 0)
    return amount // step * step
