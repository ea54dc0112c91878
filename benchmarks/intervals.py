"""Estimates with the interval that a bootstrap gives them.

Prompts are what is drawn again: they differ more from each other than repeats do. An interval says
what other prompts of the same kind would have given, in the same hour on the same machine.
(Efron, "Bootstrap methods: another look at the jackknife", 1979; percentile intervals.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_DRAWS = 4000
_SEED = 0
_BOUNDS = (2.5, 97.5)


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float

    def as_json(self, name: str) -> dict[str, float | list[float]]:
        """Return the entries NAME and NAME_ci95 of a report."""
        interval = [round(self.low, 4), round(self.high, 4)]
        return {name: round(self.value, 4), f"{name}_ci95": interval}


def median_of(values: Sequence[float]) -> Estimate:
    """Return the median of a value a prompt. Raises ValueError for none."""
    samples = _samples(values)
    draws = np.median(samples[_picks(len(samples))], axis=1)
    return _estimate(float(np.median(samples)), draws)


def mean_of(values: Sequence[float]) -> Estimate:
    """Return the geometric mean of a rate or ratio a prompt. Raises ValueError for none.

    The mean of ratios is then the ratio of means. One slow answer moves it, as it does no median.
    """
    samples = np.log(_samples(values))
    draws = np.exp(samples[_picks(len(samples))].mean(axis=1))
    return _estimate(float(np.exp(samples.mean())), draws)


def ratio_of_sums(over: Sequence[float], under: Sequence[float]) -> Estimate:
    """Return sum(over) / sum(under), of pairs that are drawn together.

    What takes long counts for much, as it does to whoever waits. Raises ValueError for none.
    """
    numerators, denominators = _samples(over), _samples(under)
    picks = _picks(len(numerators))
    draws = numerators[picks].sum(axis=1) / denominators[picks].sum(axis=1)
    return _estimate(float(numerators.sum() / denominators.sum()), draws)


def _samples(values: Sequence[float]) -> Floats:
    if not values:
        raise ValueError("an estimate needs at least one value, got none")
    return np.asarray(values, dtype=np.float64)


def _picks(count: int) -> NDArray[np.int64]:
    return np.random.default_rng(_SEED).integers(count, size=(_DRAWS, count))


def _estimate(value: float, draws: Floats) -> Estimate:
    low, high = np.percentile(draws, _BOUNDS)
    return Estimate(value, float(low), float(high))
