"""The comparison as a Markdown page and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.reports import new_figure, page, table, with_interval
from benchmarks.round_parts import PARTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"draft": "tab:orange", "hops": "tab:grey", "verify": "tab:blue", "other": "tab:pink"}
_POSITIONS = 8
_PLANS = 4
_OTHERS = ("plain", "plain_mean", "best_fixed")
Entry = dict[str, Any]


def markdown(report: Entry) -> str:
    """Return the page: speed by task, acceptance by position, a round's parts."""
    groups = _groups(report)
    return page(
        report,
        "Comparison of plain, fixed and automatic speculation",
        [_speed_table(groups), _acceptance_table(groups), _round_table(report["overall"])],
    )


def picture(report: Entry) -> Figure:
    """Draw the ratios to plain decoding by task, and where a round's time goes in every arm."""
    figure = new_figure(13, 5)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_ratios(left, _groups(report))
    _draw_rounds(right, report["overall"]["arms"])
    if report["simulated"]:
        figure.suptitle("simulated: accept lengths were forced")
    return figure


def _groups(report: Entry) -> list[Entry]:
    return [*report["tasks"], {"task": "all"} | report["overall"]]


def _speed_table(groups: Sequence[Entry]) -> str:
    head = ["task", "prompts", "plain tok/s", "best fixed", "tok/s", "auto tok/s"]
    head += ["auto / plain", "its mean", "auto / best fixed", "accept length: auto", "fixed"]
    return table(head, [_speed_row(group) for group in groups])


def _speed_row(group: Entry) -> list[Any]:
    return [
        *(group["task"], group["prompts"], f"{group['plain_tps']:.1f}", group["best_fixed"]),
        *(f"{group['fixed_tps']:.1f}", f"{group['auto_tps']:.1f}"),
        *(with_interval(group, f"auto_over_{other}") for other in _OTHERS),
        *(f"{group['accept_length']:.2f}", f"{group['fixed_accept_length']:.2f}"),
    ]


def _acceptance_table(groups: Sequence[Entry]) -> str:
    """Shares of rounds in which the draft at each depth was accepted."""
    drafting = [(group, arm) for group in groups for arm in group["arms"] if arm["drafted"]]
    deepest = max((len(arm["accepted_by_position"]) for _, arm in drafting), default=0)
    depths = range(min(deepest, _POSITIONS))
    rows = [[group["task"], arm["arm"], *_shares(arm, depths)] for group, arm in drafting]
    return table(["task", "arm", *(f"depth {depth + 1}" for depth in depths)], rows)


def _shares(arm: Entry, depths: range) -> list[str]:
    shares = arm["accepted_by_position"]
    return [f"{shares[depth]:.2f}" if depth < len(shares) else "" for depth in depths]


def _round_table(overall: Entry) -> str:
    head = ["arm", "tok/s", "over plain", "rounds", "missed", *(f"{part} ms" for part in PARTS)]
    head.append("plans in use")
    rows = [
        [
            *(arm["arm"], f"{arm['tps']:.1f}", with_interval(arm, "over_plain")),
            *(arm["rounds"], arm["missed"], *(f"{arm['round_ms'][part]:.2f}" for part in PARTS)),
            _plans_in_use(arm),
        ]
        for arm in overall["arms"]
    ]
    return table(head, rows)


def _plans_in_use(arm: Entry) -> str:
    plans, rounds = arm["rounds_by_plan"], max(arm["rounds"], 1)
    shown = list(plans.items())[:_PLANS]
    return ", ".join(f"{plan} {100 * count / rounds:.0f} %" for plan, count in shown)


def _draw_ratios(axes: Axes, groups: Sequence[Entry]) -> None:
    names = [arm["arm"] for arm in groups[0]["arms"]][1:]
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        arms = [_named(group["arms"], name) for group in groups]
        values = [arm["over_plain"] for arm in arms]
        at = [i + (place - (len(names) - 1) / 2) * width for i in range(len(groups))]
        axes.bar(at, values, width * 0.9, label=name, yerr=_errors(arms, values), capsize=2)
    axes.axhline(1, color="black", linewidth=1)
    axes.set_xticks(range(len(groups)), [group["task"] for group in groups], rotation=20)
    axes.set(ylabel="speed over plain decoding (95 % intervals)")
    axes.legend(fontsize="small")


def _errors(arms: Sequence[Entry], values: Sequence[float]) -> list[list[float]]:
    """Return how far the intervals reach below and above; the median lies in its interval."""
    intervals = [arm["over_plain_ci95"] for arm in arms]
    below = [max(value - low, 0) for value, (low, _) in zip(values, intervals, strict=True)]
    above = [max(high - value, 0) for value, (_, high) in zip(values, intervals, strict=True)]
    return [below, above]


def _named(arms: Sequence[Entry], name: str) -> Entry:
    return next(arm for arm in arms if arm["arm"] == name)


def _draw_rounds(axes: Axes, arms: Sequence[Entry]) -> None:
    names = [f"{arm['arm']}\n{arm['accept_length']:.2f} tok" for arm in arms]
    floor = [0.0] * len(arms)
    for part in PARTS:
        heights = [arm["round_ms"][part] for arm in arms]
        axes.bar(names, heights, 0.6, floor, label=part, color=_COLOURS[part])
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    axes.set(ylabel="ms a round, all tasks")
    axes.legend(fontsize="small")
