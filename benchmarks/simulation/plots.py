"""Pictures of forecasts and of the cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.simulation import story
from benchmarks.simulation.acceptance import Acceptance
from benchmarks.simulation.forecast import Forecast
from benchmarks.simulation.hardware import Hardware

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 80


def plot_forecasts(forecasts: Sequence[Forecast], title: str, path: Path) -> None:
    """Draw speed by load, and by steps how much faster than plain each load is."""
    figure = _figure(title)
    left, right = figure.subplots(1, 2)
    _draw_loads(left, forecasts)
    _draw_steps(right, forecasts)
    figure.savefig(path, dpi=_DPI)


def _figure(title: str) -> Figure:
    # Not every command draws.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    figure.suptitle(title)
    return figure


def _draw_loads(axes: Axes, forecasts: Sequence[Forecast]) -> None:
    places = range(len(forecasts))
    for name, marker, speeds in (
        ("plain", "s", [one.plain.tokens_per_second for one in forecasts]),
        ("best fixed steps", "o", [one.best.tokens_per_second for one in forecasts]),
        ("auto", "x", [one.auto.tokens_per_second for one in forecasts]),
    ):
        axes.plot(places, speeds, marker=marker, label=name)
    axes.set_xticks(places, [str(one.sessions) for one in forecasts])
    axes.set(xlabel="sessions at once", ylabel="tokens a second, each", ylim=(0, None))
    axes.legend()


def _draw_steps(axes: Axes, forecasts: Sequence[Forecast]) -> None:
    for one in forecasts:
        gains = [1 + one.gain(outcome) for outcome in one.fixed.values()]
        label = f"{one.sessions} session{'s' * (one.sessions > 1)}"
        axes.plot(list(one.fixed), gains, marker="o", label=label)
    axes.axhline(1, color="grey", linewidth=1)
    axes.set(xlabel="steps of every round (chain)", ylabel="times plain decoding", ylim=(0, None))
    axes.legend(loc="lower right")


def plot_story(simulated: Sequence[float], apart: Sequence[float], path: Path) -> None:
    """Draw the six speeds of the story, the simulated ones, and those with the drafter apart.

    All in the order of `story.ATTEMPTS`.
    """
    figure = _figure("Kimi-K2.5 with EAGLE-3, tokens a second")
    axes = figure.subplots()
    measured = [attempt.tokens_per_second for attempt in story.ATTEMPTS]
    for place, (name, speeds) in enumerate(
        {
            "in one engine, measured": measured,
            "in one engine, simulated": simulated,
            "drafter apart, simulated": apart,
        }.items()
    ):
        axes.bar([0.28 * (place - 1) + x for x in range(len(speeds))], speeds, 0.28, label=name)
    axes.axhline(story.PLAIN.tokens_per_second, color="grey", linewidth=1)
    axes.set_xticks(range(len(measured)), [_caption(attempt) for attempt in story.ATTEMPTS])
    axes.legend(loc="upper left", fontsize="small", ncols=3)
    axes.set_ylim(0, 150)
    figure.savefig(path, dpi=_DPI)


def _caption(attempt: story.Attempt) -> str:
    mark = "\n(predicted)" if attempt.predicted else ""
    return attempt.name.replace(", ", ",\n") + mark


def plot_rounds(layouts: dict[str, Hardware], acceptance: Acceptance, path: Path) -> None:
    """Draw where one session's round goes by steps, and the accept length at which it pays."""
    figure = _figure("One session: where a round goes")
    for axes, (name, hardware) in zip(
        figure.subplots(1, 2, sharey=True), layouts.items(), strict=True
    ):
        steps = range(1, 8)
        plain_ms = 1000 * hardware.plain_s(1)
        base = [0.0 for _ in steps]
        for part, times in _parts(hardware, steps).items():
            axes.bar(steps, times, bottom=base, label=part)
            base = [below + time for below, time in zip(base, times, strict=True)]
        worth = [plain_ms * acceptance.accept_length(count) for count in steps]
        axes.plot(steps, worth, "k.-", label="plain steps for the same tokens")
        axes.set(title=name, xlabel="steps (chain)", ylabel="milliseconds", ylim=(0, 33))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", fontsize="small")
    figure.savefig(path, dpi=_DPI)


def _parts(hardware: Hardware, steps: Sequence[int]) -> dict[str, list[float]]:
    """Return the milliseconds of each part of a round, by steps."""
    target, drafter, network = hardware.target, hardware.drafter, hardware.network
    dense = replace(target, experts=None)
    rows = [count + 1 for count in steps]
    parts = {
        "target: fixed": [1000 * dense.seconds(count, 1) for count in rows],
        "target: experts": [
            1000 * (target.seconds(count, 1) - dense.seconds(count, 1)) for count in rows
        ],
        "drafter: overhead, taps": [drafter.extend_ms for _ in steps],
        "drafter: steps": [1000 * drafter.grow_s(count, count - 1) for count in steps],
    }
    hops_ms = 1.5 * network.rtt_ms if network else 0.0
    return parts | {"three hops": [hops_ms for _ in steps]}
