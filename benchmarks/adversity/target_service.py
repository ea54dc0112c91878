"""A target whose rows can become dear: `python -m benchmarks.adversity.target_service SWITCH ...`.

It is the real one with the real arguments, but for how long a forward takes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.adversity.disturbance import Switch
from protos import serving
from target_service import __main__ as real
from target_service.engine import Engine, Outcome
from target_service.session import Rows


class DearEngine(Engine):
    """The engine, with a longer forward when the switch says so. The time is slept."""

    def __init__(self, switch: Switch, *parts: Any) -> None:
        super().__init__(*parts)
        self._switch = switch

    def step(self, batch: Sequence[Rows]) -> list[Outcome]:
        """Step; every row of the batch after its first costs extra, and the timings say so."""
        outcomes = super().step(batch)
        extra_rows = sum(len(rows.tokens) for rows in batch) - 1
        extra_s = extra_rows * self._switch.get().extra_row_us / 1e6
        if not extra_s:
            return outcomes
        started = time.perf_counter()
        time.sleep(extra_s)
        slept_us = int((time.perf_counter() - started) * 1e6)
        return [lengthened(outcome, slept_us) for outcome in outcomes]


def lengthened(outcome: Outcome, extra_us: int) -> Outcome:
    """Return the outcome of a step whose forward took so much longer."""
    verdict = outcome.verdict
    if verdict is None:
        return outcome
    timings = replace(verdict.timings, forward_us=verdict.timings.forward_us + extra_us)
    return replace(outcome, verdict=replace(verdict, timings=timings))


def main() -> None:
    """Take the path of the switch from the arguments; the rest is for the real service."""
    engine = partial(DearEngine, Switch(Path(sys.argv.pop(1))))
    with patch.object(real, "Engine", engine):
        serving.run(real.main)


if __name__ == "__main__":
    main()
