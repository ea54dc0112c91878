"""The sweep as a Markdown page and as heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.reports import new_figure, page, table, with_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Entry = dict[str, Any]


def markdown(report: Entry) -> str:
    """Return the page: the best setting and auto at every temperature, then all settings."""
    fields = report["temperatures"]
    return page(
        report,
        "Sweep of the whole grid",
        [_verdict_table(fields), *(_settings_table(one) for one in fields)],
    )


def picture(report: Entry) -> Figure:
    """Draw a heat map of speed over plain for every temperature (down) and top-k (across)."""
    settings, fields = report["settings"], report["temperatures"]
    top_ks = settings["top_ks"]
    figure = new_figure(1.5 + 4 * len(top_ks), 0.8 + 3.6 * len(fields))
    grid = figure.subplots(len(fields), len(top_ks), squeeze=False)
    speeds = [cell["over_plain"] for one in fields for cell in one["cells"]]
    for line, one in zip(grid, fields, strict=True):
        for axes, top_k in zip(line, top_ks, strict=True):
            cells = [cell for cell in one["cells"] if cell["top_k"] == top_k]
            _draw_cells(axes, cells, one["best"]["arm"], (min(speeds), max(speeds)))
            axes.set_title(f"top_k {top_k}, temperature {one['temperature']:g}")
    figure.suptitle("; ".join(_in_words(one) for one in fields) + _warning(report))
    return figure


def _warning(report: Entry) -> str:
    return "; SIMULATED acceptance" if report["simulated"] else ""


def _in_words(one: Entry) -> str:
    best, auto = one["best"], one["auto"]
    return (
        f"temperature {one['temperature']:g}: best {best['arm']} {best['over_plain']:.2f}, "
        f"auto {auto['over_plain']:.2f} of plain"
    )


def _verdict_table(fields: Sequence[Entry]) -> str:
    head = ["temperature", "plain tok/s", "best", "tok/s", "best / plain", "auto tok/s"]
    head += ["auto / plain", "auto / best", "regret"]
    return table(head, [_verdict(one) for one in fields])


def _verdict(one: Entry) -> list[Any]:
    plain, best, auto = one["plain"], one["best"], one["auto"]
    return [
        *(f"{one['temperature']:g}", f"{plain['tps']:.1f}", best["arm"], f"{best['tps']:.1f}"),
        *(with_interval(best, "over_plain"), f"{auto['tps']:.1f}"),
        *(with_interval(auto, "over_plain"), with_interval(one, "auto_over_best")),
        f"{100 * one['regret']:.1f} %",
    ]


def _settings_table(one: Entry) -> str:
    """Every tree once, the fastest first."""
    arms = {cell["arm"]: cell for cell in [*one["cells"], one["plain"], one["auto"]]}
    ranked = sorted(arms.values(), key=lambda arm: -arm["tps"])
    head = [f"setting at {one['temperature']:g}", "tok/s", "over plain", "accept length"]
    rows = [
        [
            *(arm["arm"], with_interval(arm, "tps")),
            *(with_interval(arm, "over_plain"), f"{arm['accept_length']:.2f}"),
        ]
        for arm in ranked
    ]
    return table(head, rows)


def _draw_cells(axes: Axes, cells: Sequence[Entry], best: str, limits: tuple[float, float]) -> None:
    steps = sorted({cell["steps"] for cell in cells})
    nodes = sorted({cell["draft_tokens"] for cell in cells})
    of = {(cell["steps"], cell["draft_tokens"]): cell for cell in cells}
    speeds = [[of[step, count]["over_plain"] for count in nodes] for step in steps]
    axes.imshow(speeds, vmin=limits[0], vmax=limits[1], cmap="viridis", aspect="auto")
    axes.set_xticks(range(len(nodes)), [str(count) for count in nodes])
    axes.set_yticks(range(len(steps)), [str(step) for step in steps])
    axes.set(xlabel="draft tokens", ylabel="steps")
    for row, step in enumerate(steps):
        for column, count in enumerate(nodes):
            cell = of[step, count]
            mark = "*" if cell["arm"] == best else ""
            axes.text(column, row, f"{cell['over_plain']:.2f}{mark}", **_TEXT)


_TEXT: dict[str, Any] = {
    "ha": "center",
    "va": "center",
    "fontsize": 8,
    "bbox": {"boxstyle": "round,pad=0.15", "facecolor": "white", "alpha": 0.6, "linewidth": 0},
}
