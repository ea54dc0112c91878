"""The picture of a scenario: how fast each arm was, in times of plain, while things went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.adversity.cycle import Cycle, cycles_of, seconds_of
from benchmarks.adversity.findings import Findings
from benchmarks.adversity.window import LEAST_OF_PLAIN
from benchmarks.reports import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Cycles on each side that a point is smoothed over.
_NEIGHBOURS = 2


def curve(cycles: Sequence[Cycle], arm: str) -> list[float]:
    """Return an arm's speed around every cycle of a phase, in times of plain."""
    return [
        _speed(cycles[max(0, place - _NEIGHBOURS) : place + _NEIGHBOURS + 1], arm)
        for place in range(len(cycles))
    ]


def _speed(cycles: Sequence[Cycle], arm: str) -> float:
    theirs = sum(cycle.runs[arm].tokens / cycle.runs["plain"].rate for cycle in cycles)
    return theirs / seconds_of(cycles, arm)


def middles(cycles: Sequence[Cycle], begun_s: float) -> list[float]:
    """Return when each cycle of a phase was half over, on the clock of auto's decoding."""
    own = [cycle.runs["auto"].seconds for cycle in cycles]
    return [begun_s + sum(own[:place]) + seconds / 2 for place, seconds in enumerate(own)]


def changes(cycles: Sequence[Cycle], phases: int) -> list[float]:
    """Return when each phase began, on the same clock."""
    return [
        seconds_of([cycle for cycle in cycles if cycle.phase < phase], "auto")
        for phase in range(phases)
    ]


def plot(findings: Findings, path: Path) -> None:
    """Draw all arms over auto's decoding time, with the changes marked."""
    figure = new_figure(10, 4.5)
    axes = figure.subplots()
    begun = changes(findings.cycles, len(findings.scenario.phases))
    for number, begun_s in enumerate(begun):
        _draw_phase(axes, cycles_of(findings.cycles, number), begun_s)
    axes.axhline(LEAST_OF_PLAIN, color="grey", linewidth=0.8, linestyle=":")
    axes.set(title=findings.scenario.title, xlabel="seconds of auto's decoding")
    axes.set(ylabel="tokens a second, in times of plain", ylim=(0, None), xlim=(0, None))
    for phase, begun_s in zip(findings.scenario.phases, begun, strict=True):
        axes.axvline(begun_s, color="black", linewidth=0.8)
        axes.text(begun_s, axes.get_ylim()[1], f" {phase.label}", verticalalignment="top")
    arms = list(findings.cycles[0].runs)
    axes.legend(axes.get_lines()[: len(arms)], arms, loc="lower right", ncols=len(arms))
    figure.savefig(path, dpi=120)


def _draw_phase(axes: Axes, cycles: Sequence[Cycle], begun_s: float) -> None:
    """Draw every arm; what lies on the other side of a change is not joined to it."""
    at = middles(cycles, begun_s)
    for number, arm in enumerate(cycles[0].runs):
        wide = 2.4 if arm == "auto" else 1.0
        axes.plot(at, curve(cycles, arm), color=f"C{number}", linewidth=wide)
