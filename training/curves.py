"""How a training went, as a table that grows while it runs, and as a picture of it."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path


class Curves:
    """A CSV file with a line a report. A training that goes on adds to it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, report: Mapping[str, float]) -> None:
        """Append a line; the first one is preceded by the names."""
        new = not self._path.exists()
        with self._path.open("a", newline="") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(report)
            writer.writerow(f"{value:.6g}" for value in report.values())

    def cut(self, step: int) -> None:
        """Drop the lines behind a step: a training that goes on will make them again."""
        if not self._path.exists():
            return
        names, *lines = self._read()
        kept = [line for line in lines if float(line[0]) <= step]
        with self._path.open("w", newline="") as file:
            csv.writer(file).writerows([names, *kept])

    def _read(self) -> list[list[str]]:
        with self._path.open(newline="") as file:
            return list(csv.reader(file))

    def columns(self) -> dict[str, list[float]]:
        """Return the values of every column by its name."""
        names, *lines = self._read()
        return {name: [float(line[i]) for line in lines] for i, name in enumerate(names)}


def plot_training(columns: Mapping[str, Sequence[float]], path: Path) -> None:
    """Draw loss and acceptance by position over the tokens seen."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(columns["tokens"], columns["loss"])
    left.set(xlabel="tokens seen", ylabel="loss")
    for name, values in columns.items():
        if name.startswith("acceptance_"):
            right.plot(columns["tokens"], values, label=f"position {name.rpartition('_')[2]}")
    right.set(xlabel="tokens seen", ylabel="accepted up to this position", ylim=(0, 1))
    right.legend()
    figure.savefig(path)
