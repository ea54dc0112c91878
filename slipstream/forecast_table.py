"""Forecasts as a table, as advice in a sentence, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.table import Table

if TYPE_CHECKING:
    from benchmarks.simulation.forecast import Forecast
    from benchmarks.simulation.stack import Outcome


def table(forecasts: Sequence[Forecast], title: str) -> Table:
    """Return plain decoding, the best fixed number of steps and the gateway's policy side by side.

    "all" is the speed of all sessions together with auto, "accept" auto's accept length,
    "drafters" how many a target needs, each busy for 70 % of the time.
    """
    title = f"{title}: simulated tokens a second of each session"
    found = Table(title=title, box=SIMPLE, padding=(0, 1), pad_edge=False)
    for name in ("sessions", "plain", "best fixed", "steps", "auto", "all", "accept", "drafters"):
        found.add_column(name, justify="right", no_wrap=True)
    for one in forecasts:
        found.add_row(
            str(one.sessions),
            f"{one.plain.tokens_per_second:.1f}",
            _speed(one, one.best),
            str(one.best_steps),
            _speed(one, one.auto),
            f"{one.auto.total_tokens_per_second:.0f}",
            f"{one.auto.accept_length:.2f}",
            f"{one.drafters:.2f}",
        )
    return found


def _speed(one: Forecast, outcome: Outcome) -> str:
    return f"{outcome.tokens_per_second:.1f} {one.gain(outcome):+.0%}"


def advice(forecasts: Sequence[Forecast]) -> str:
    """Return what the figures come to."""
    gains = [one.gain(one.auto) for one in forecasts]
    most = max(one.drafters for one in forecasts)
    return (
        f"Auto gains {min(gains):+.0%} to {max(gains):+.0%}. {_drafters(most)} "
        "Figures are of a model, good to some 10 %: measure before you buy."
    )


def _drafters(needed: float) -> str:
    """Say how many drafters go with how many targets."""
    if needed == 0:
        return "No drafter is needed."
    targets = math.floor(1 / needed)
    if targets > 1:
        return f"One drafter is enough for {targets} targets."
    return f"A target needs {math.ceil(needed)} drafter{'s' * (needed > 1)}."


def as_json(one: Forecast) -> dict[str, Any]:
    """Return all figures of one load."""
    return asdict(one) | {"best_steps": one.best_steps, "auto_gain": one.gain(one.auto)}
