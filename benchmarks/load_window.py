"""What was seen of a load in a stretch of time: throughput and latencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.streams import Answer

_PERCENTILES = (50, 99)


@dataclass(frozen=True)
class Window:
    """Some answers, and from when to when their chunks count. Seconds on our own clock."""

    answers: Sequence[Answer]
    begin: float
    end: float
    refused: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Tokens of all answers that came in the window, by its length."""
        tokens = sum(taken.tokens_between(self.begin, self.end) for taken in self.answers)
        return tokens / (self.end - self.begin)

    @property
    def first_token_s(self) -> list[float]:
        """From a request to its first token, of those whose first token came in the window."""
        return [
            taken.times[0] - taken.started
            for taken in self.answers
            if taken.times and self._has(taken.times[0])
        ]

    @property
    def gaps_s(self) -> list[float]:
        """Between a chunk in the window and the one before."""
        return [
            gap
            for taken in self.answers
            for at, gap in zip(taken.times[1:], taken.gaps, strict=True)
            if self._has(at)
        ]

    @property
    def token_s(self) -> list[float]:
        """Seconds a token took, of every stream that had two chunks in the window."""
        found = []
        for taken in self.answers:
            inside = [at for at in taken.times if self._has(at)]
            if len(inside) > 1:
                tokens = taken.tokens_between(inside[0], inside[-1])
                found.append((inside[-1] - inside[0]) / tokens)
        return found

    def _has(self, at: float) -> bool:
        return self.begin < at <= self.end


def in_numbers(windows: Sequence[Window]) -> dict[str, Any]:
    """Return the figures of some windows together: the median throughput, latencies of all."""
    rates = [window.tokens_per_second for window in windows]
    return {
        "tps": round(float(np.median(rates)), 2),
        "tps_least": round(min(rates), 2),
        "tps_most": round(max(rates), 2),
        "first_token_ms": _percentiles([s for window in windows for s in window.first_token_s]),
        "chunk_gap_ms": _percentiles([s for window in windows for s in window.gaps_s]),
        "token_ms": _percentiles([s for window in windows for s in window.token_s]),
        "answers": sum(len(window.first_token_s) for window in windows),
        "refused": sum(window.refused for window in windows),
    }


def _percentiles(seconds: Sequence[float]) -> dict[str, float] | None:
    """Return p50 and p99 in ms; None without a single value."""
    if not seconds:
        return None
    values = 1000 * np.percentile(np.asarray(seconds), _PERCENTILES)
    return {f"p{p}": round(float(ms), 2) for p, ms in zip(_PERCENTILES, values, strict=True)}
