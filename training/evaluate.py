"""How good a drafter is: accept length, acceptance by position, and how sure that is."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from draft_service.drafters import Drafter
from draft_service.scorecard import Scorecard
from protos.messages import Plan
from training.calibration import Calibration
from training.dataset import Dataset
from training.replay import Round, replay
from training.tap_columns import columns_of

ALL = "all"


@dataclass
class Report:
    """Scorecards by what is scored: everything, each task, each temperature."""

    steps: int
    cards: dict[str, Scorecard] = field(default_factory=lambda: defaultdict(Scorecard))
    calibration: Calibration | None = None

    def count(self, one: Round) -> None:
        """Count a round."""
        facts = one.sample.facts
        greedy = "greedy" if facts.temperature == 0 else f"temperature {facts.temperature:g}"
        names = [ALL, greedy, f"{facts.task or 'no task'}, {greedy}"]
        for name in names:
            self.cards[name].count(facts.sample_id, one.scored)

    def as_json(self) -> dict[str, Any]:
        """Return everything that was found, as it is stored beside a drafter."""
        found: dict[str, Any] = {
            "steps": self.steps,
            "scores": {name: _card(card, self.steps) for name, card in sorted(self.cards.items())},
        }
        if self.calibration is not None:
            found["calibration"] = _calibration(self.calibration)
        return found


def evaluate(drafter: Drafter[Any], dataset: Dataset, steps: int) -> Report:
    """Judge a drafter's chains on recorded conversations. Raises ValueError if taps are missing."""
    plan = Plan(steps=steps, top_k=1, draft_tokens=steps + 1)
    columns = columns_of(drafter.pairing.tap_layers, dataset.source)
    rounds = list(replay(drafter, dataset.samples(), columns, plan))
    return report_of(rounds, steps)


def report_of(rounds: Iterable[Round], steps: int) -> Report:
    """Score rounds."""
    report, greedy = Report(steps), []
    for one in rounds:
        report.count(one)
        if one.sample.facts.temperature == 0:
            greedy.append(one)
    if any(one.logprobs for one in greedy):
        report.calibration = Calibration.of(greedy)
    return report


def _card(card: Scorecard, steps: int) -> dict[str, Any]:
    low, high = card.interval()
    by_position = card.accepted_by_position + [0] * (steps - len(card.accepted_by_position))
    return {
        "accept_length": round(card.accept_length, 4),
        "between": [round(low, 4), round(high, 4)] if card.num_sessions > 1 else None,
        "rounds": card.rounds,
        "sessions": card.num_sessions,
        "accepted_by_position": [round(count / max(card.rounds, 1), 4) for count in by_position],
    }


def _calibration(found: Calibration) -> Mapping[str, Any]:
    return {
        "temperature": round(found.temperature, 4),
        "drafts": len(found.probs_N),
        "expected_error": round(found.expected_error(found.probs_N), 4),
        "expected_error_calibrated": round(found.expected_error(found.calibrated_N), 4),
        "bins": [vars(one) for one in found.bins(found.probs_N)],
    }


def plot_report(found: Mapping[str, Any], path: Path) -> None:
    """Draw acceptance by position for every task, and stated against true probabilities."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, card in found["scores"].items():
        positions = range(1, found["steps"] + 1)
        left.plot(positions, card["accepted_by_position"], marker="o", label=name)
    left.set(xlabel="position", ylabel="accepted up to this position", ylim=(0, 1))
    left.legend(fontsize="small")
    if "calibration" in found:
        bins = found["calibration"]["bins"]
        right.plot([0, 1], [0, 1], color="grey", linestyle=":")
        right.plot([b["stated"] for b in bins], [b["accepted"] for b in bins], marker="o")
    right.set(xlabel="probability of a draft", ylabel="share accepted", ylim=(0, 1), xlim=(0, 1))
    figure.savefig(path)


def write_report(found: Mapping[str, Any], directory: Path) -> None:
    """Write a report as JSON and as a picture."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "evaluation.json").write_text(json.dumps(found, indent=1) + "\n")
    plot_report(found, directory / "evaluation.png")
