"""A report in its three forms: JSON for programs, a Markdown table and a picture for people."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.machine import in_a_line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIMULATED = (
    "**Simulated**: accept lengths were forced (`forced_accept_length`); texts are no answers."
)


class Presentation(Protocol):
    """How a benchmark's report is shown to people."""

    def markdown(self, report: dict[str, Any]) -> str: ...
    def picture(self, report: dict[str, Any]) -> Figure: ...


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, in inches."""
    # Not every command needs it, and it takes a second.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def with_interval(entry: dict[str, Any], name: str) -> str:
    """Return a value and its 95 % interval for a table."""
    low, high = entry[f"{name}_ci95"]
    return f"{entry[name]:.2f} ({low:.2f}–{high:.2f})"


def page(report: dict[str, Any], title: str, parts: Sequence[str]) -> str:
    """Return a Markdown page: what was measured and on what, then its parts."""
    head = [f"## {title}", f"{report['what']}.", f"Machine: {in_a_line(report['machine'])}."]
    if report.get("simulated"):
        head.append(SIMULATED)
    return "\n\n".join([*head, *parts]) + "\n"


def write(report: dict[str, Any], shown: Presentation, path: Path) -> list[Path]:
    """Write PATH, and beside it the same name with .md and .png. Returns all three."""
    paths = [path, path.with_suffix(".md"), path.with_suffix(".png")]
    path.parent.mkdir(parents=True, exist_ok=True)
    paths[0].write_text(json.dumps(report, indent=2) + "\n")
    paths[1].write_text(shown.markdown(report))
    shown.picture(report).savefig(paths[2], dpi=120)
    return paths
