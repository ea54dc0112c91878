"""The load curves as a Markdown page and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.reports import new_figure, page, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Entry = dict[str, Any]
_LATENCIES = ("first_token_ms", "chunk_gap_ms", "token_ms")


def markdown(report: Entry) -> str:
    """Return the page: the ratios, then a table for each loop."""
    loops = [("closed_loop", "streams"), ("open_loop", "requests_per_second")]
    return page(
        report,
        "Load: many requests at once",
        [_ratio_table(report), *(_loop_table(report[loop], x) for loop, x in loops)],
    )


def picture(report: Entry) -> Figure:
    """Draw throughput against the time a token takes, and the time to the first token."""
    figure = new_figure(13, 8)
    (curve, waiting), (opened, opened_waiting) = figure.subplots(2, 2)
    closed = report["closed_loop"]
    _draw(curve, closed, ("tps", ""), ("token_ms", "p50"))
    curve.set(xlabel="tokens/s of all streams", ylabel="ms a token in a stream, median")
    for point in closed:
        if point["token_ms"]:
            place = (point["tps"], point["token_ms"]["p50"])
            curve.annotate(str(point["streams"]), place, (4, 4), textcoords="offset points")
    _draw(waiting, closed, ("streams", ""), ("first_token_ms", "p99"))
    waiting.set(xlabel="streams (closed loop)", ylabel="ms to the first token, p99")
    waiting.set_xscale("log", base=2)
    rate = ("requests_per_second", "")
    _draw(opened, report["open_loop"], rate, ("token_ms", "p50"))
    opened.set(xlabel="requests/s (open loop)", ylabel="ms a token, median", yscale="log")
    _draw(opened_waiting, report["open_loop"], rate, ("first_token_ms", "p99"))
    opened_waiting.set(xlabel="requests/s (open loop)", ylabel="ms to the first token, p99")
    opened_waiting.set_yscale("log")
    return figure


def _draw(axes: Axes, points: Sequence[Entry], x: tuple[str, str], y: tuple[str, str]) -> None:
    for name in dict.fromkeys(point["arm"] for point in points):
        of_arm = [point for point in points if point["arm"] == name and point[y[0]]]
        places = [_value(point, *x) for point in of_arm]
        axes.plot(places, [_value(point, *y) for point in of_arm], marker="o", label=name)
    axes.legend(fontsize="small")


def _value(point: Entry, name: str, percentile: str) -> float:
    return point[name][percentile] if percentile else point[name]


def _ratio_table(report: Entry) -> str:
    throughput, delay = report["throughput"], report["intrusion"]["delay_in_chunk_times"]
    rows = [
        *((f"{arm} over 1 plain", one) for arm, one in throughput["over_1_plain"].items()),
        ("8 speculated over 8 plain", throughput["speculated_over_plain_at_8"]),
        ("delay while a long prompt comes, in chunk times", delay),
        ("first token, known over unknown beginning", report["prefix"]["second_over_first"]),
    ]
    told = [[name, one["median"], one["least"], one["most"]] for name, one in rows]
    return table(["ratio", "median", "least", "most"], told)


def _loop_table(points: Sequence[Entry], x: str) -> str:
    head = [x.replace("_", " "), "arm", "tok/s", "answers", "refused"]
    head += ["first token p50 ms", "p99", "chunk gap p50 ms", "p99", "token p50 ms", "p99"]
    rows = [
        [
            *(f"{point[x]:g}", point["arm"], point["tps"], point["answers"], point["refused"]),
            *(_percentile(point, name, p) for name in _LATENCIES for p in ("p50", "p99")),
        ]
        for point in points
    ]
    return table(head, rows)


def _percentile(point: Entry, name: str, percentile: str) -> str:
    return f"{point[name][percentile]:.1f}" if point[name] else ""
