"""What a scenario came to: its cycles, judged by both claims, as JSON and as a Markdown table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.adversity.cycle import Cycle, cycles_of
from benchmarks.adversity.ratio import Verdict, judge
from benchmarks.adversity.recovery import LEAST_OF_BEST, ROUNDS, Recovery, recovery
from benchmarks.adversity.scenario import RowCost, Scenario
from benchmarks.adversity.window import LEAST_OF_PLAIN, WINDOW_S, Window, windows
from benchmarks.intervals import Estimate
from benchmarks.reports import page, table


@dataclass(frozen=True)
class Findings:
    """The judged timeline of one scenario."""

    scenario: Scenario
    cost: RowCost
    cycles: Sequence[Cycle]
    windows: Sequence[Window]
    recoveries: Sequence[Recovery]

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        cost: RowCost,
        cycles: Sequence[Cycle],
        window_s: float = WINDOW_S,
    ) -> Findings:
        """Judge the cycles of a scenario."""
        phases = range(len(scenario.phases))
        recoveries = [recovery(cycles_of(cycles, phase), phase) for phase in phases]
        return cls(scenario, cost, cycles, list(windows(cycles, window_s)), recoveries)

    @property
    def worst(self) -> Window | None:
        """The window in which auto did worst; None if the timeline is shorter than one."""
        return min(self.windows, key=lambda window: window.ratio.value, default=None)

    @property
    def never_slower(self) -> Verdict:
        """Whether auto kept to plain decoding in every window."""
        return judge([window.ratio for window in self.windows], LEAST_OF_PLAIN)

    @property
    def recovers(self) -> Verdict:
        """Whether auto caught up with the best setting after every change."""
        if any(one.ratio is None for one in self.recoveries):
            return Verdict.UNMEASURED
        return judge([one.ratio for one in self.recoveries if one.ratio], LEAST_OF_BEST)

    @property
    def failed(self) -> bool:
        """Whether a claim was refuted."""
        return Verdict.FAILS in (self.never_slower, self.recovers)

    def as_json(self) -> dict[str, Any]:
        """Verdicts first, then what they rest on, down to every cycle."""
        return {
            "scenario": self.scenario.name,
            "title": self.scenario.title,
            "phases": [phase.label for phase in self.scenario.phases],
            "step_us": round(self.cost.step_us),
            "row_us": round(self.cost.row_us),
            "extra_row_us_when_dear": round(self.cost.extra_us),
            "never_slower_than_plain": {
                "limit": LEAST_OF_PLAIN,
                "verdict": self.never_slower,
                "worst": self.worst and self.worst.as_json(),
                "windows": [window.as_json() for window in self.windows],
            },
            "recovers": {
                "limit": LEAST_OF_BEST,
                "after_rounds": ROUNDS,
                "verdict": self.recovers,
                "changes": [one.as_json() for one in self.recoveries],
            },
            "cycles": [cycle.as_json() for cycle in self.cycles],
        }


def markdown(all_findings: Sequence[Findings], told: dict[str, Any]) -> str:
    """Return a page of both claims as tables: a line a scenario, and a line a phase."""
    claim = f"worst {WINDOW_S:.0f} s window, auto / plain (at least {LEAST_OF_PLAIN})"
    windows_table = table(["scenario", claim, "verdict"], map(_window_line, all_findings))
    headings = [
        *("scenario", "phase", "best setting"),
        *(f"auto / best (at least {LEAST_OF_BEST})", "rounds to get there", "verdict"),
    ]
    lines = [line for findings in all_findings for line in _phase_lines(findings)]
    return page(told, "Adversity", [windows_table, table(headings, lines)])


def _window_line(findings: Findings) -> Sequence[str]:
    worst = findings.worst
    return findings.scenario.name, _shown(worst.ratio if worst else None), findings.never_slower


def _phase_lines(findings: Findings) -> Iterator[Sequence[str]]:
    for one, phase in zip(findings.recoveries, findings.scenario.phases, strict=True):
        verdict = judge([one.ratio] if one.ratio else [], LEAST_OF_BEST)
        rounds = "never" if one.rounds is None else f"{one.rounds:.0f}"
        best = f"{one.best} ({one.speeds[one.best]:.2f} x plain)" if one.best else "-"
        yield findings.scenario.name, phase.label, best, _shown(one.ratio), rounds, verdict


def _shown(ratio: Estimate | None) -> str:
    """Return a ratio with the digits that a limit of 0.98 needs."""
    if ratio is None:
        return "-"
    return f"{ratio.value:.3f} ({ratio.low:.3f}–{ratio.high:.3f})"


def report(all_findings: Sequence[Findings], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything as JSON; `facts` say on what it was measured."""
    return {
        "what": "adversity: arms take turns in one timeline; ratios over the same cycles",
        **facts,
        "scenarios": [findings.as_json() for findings in all_findings],
    }
