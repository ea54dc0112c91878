"""Plain decoding, fixed trees and the automatic choice, task by task, one request at a time.

`slipstream bench compare --prompts FILE --json OUT` writes JSON, a Markdown table and a picture.
Rates are medians over prompts of tokens a second after the first token; ratios are medians over
prompts of the ratio to the same prompt's other answer; `_mean` is their geometric mean, in which a
few prompts that gain much count. All arms must give the same tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.acceptance import accept_length, shares_by_position
from benchmarks.arms import AUTO, PLAIN, Arm, Wish
from benchmarks.grid import tree_of
from benchmarks.interleaved import Measurements, measure
from benchmarks.intervals import Estimate, mean_of, median_of
from benchmarks.round_parts import mean_parts_ms
from protos import gateway_pb2 as pb
from protos.messages import Plan
from slipstream.client import Client
from slipstream.generate import Prompt

_WHAT = "Plain decoding, fixed trees and auto, one request at a time, arms in turn for every prompt"


def compare(
    client: Client, prompts: Sequence[Prompt], fixed: Sequence[Arm], wish: Wish, repeats: int
) -> dict[str, Any]:
    """Measure all arms and return the report, without the machine.

    Raises TextsDifferError; ValueError if no answer is long enough to time.
    """
    found = Measurements(prompts, [PLAIN, *fixed, AUTO], wish.simulates)
    measure(client, found, wish, repeats=repeats)
    return report_of(found, wish, repeats)


def report_of(found: Measurements, wish: Wish, repeats: int) -> dict[str, Any]:
    """Return the report on what was measured."""
    timed = found.timed
    if not timed:
        raise ValueError("no prompt was answered with enough tokens to time")
    tasks: dict[str, list[int]] = {}
    for number in timed:
        tasks.setdefault(found.prompts[number].task, []).append(number)
    return {
        "what": _WHAT,
        "simulated": wish.simulates,
        "settings": vars(wish) | {"repeats": repeats, "arms": [arm.name for arm in found.arms]},
        "prompts": len(found.prompts),
        "too_short": [n + 1 for n in range(len(found.prompts)) if n not in timed],
        "tasks": [{"task": task} | Group(found, of).as_json() for task, of in tasks.items()],
        "overall": Group(found, timed).as_json(),
    }


@dataclass(frozen=True)
class Group:
    """Some prompts, and how the arms did on them."""

    found: Measurements
    numbers: Sequence[int]

    def as_json(self) -> dict[str, Any]:
        """Return the group's entry of a report. `fixed` is the fixed arm that did best."""
        best = self.best_fixed
        rates = {"plain": PLAIN, "fixed": best, "auto": AUTO}
        return {
            "prompts": len(self.numbers),
            **{f"{name}_tps": round(self.rate(arm).value, 2) for name, arm in rates.items()},
            **self.ratio(AUTO, PLAIN).as_json("auto_over_plain"),
            **mean_of(self._ratios(AUTO, PLAIN)).as_json("auto_over_plain_mean"),
            "best_fixed": best.name,
            **self.ratio(AUTO, best).as_json("auto_over_best_fixed"),
            **self.ratio(best, PLAIN).as_json("best_fixed_over_plain"),
            "accept_length": self.accept_length(AUTO),
            "fixed_accept_length": self.accept_length(best),
            "arms": [self._arm_json(arm) for arm in self.found.arms],
        }

    @property
    def best_fixed(self) -> Arm:
        """The fixed arm of the highest ratio to plain decoding. Chosen afterwards: auto has to
        stand up to the one that happened to win.
        """
        fixed = [arm for arm in self.found.arms if arm.mode == "fixed"]
        return max(fixed, key=lambda arm: self.ratio(arm, PLAIN).value)

    def rate(self, arm: Arm) -> Estimate:
        """Return tokens a second."""
        return median_of([self.found.rate(number, arm) for number in self.numbers])

    def ratio(self, arm: Arm, other: Arm) -> Estimate:
        """Return how much faster an arm answered the same prompts than another."""
        return median_of(self._ratios(arm, other))

    def _ratios(self, arm: Arm, other: Arm) -> list[float]:
        rate = self.found.rate
        return [rate(number, arm) / rate(number, other) for number in self.numbers]

    def accept_length(self, arm: Arm) -> float:
        """Return the accept length over all answers of an arm."""
        return accept_length(self.found.of_arm(arm, self.numbers))

    def _arm_json(self, arm: Arm) -> dict[str, Any]:
        taken = self.found.of_arm(arm, self.numbers)
        stats = [one.completion.finish.speculation for one in taken]
        return {
            "arm": arm.name,
            **self.rate(arm).as_json("tps"),
            **self.ratio(arm, PLAIN).as_json("over_plain"),
            "accept_length": accept_length(taken),
            "accepted_by_position": [round(share, 4) for share in shares_by_position(taken)],
            "drafted": sum(one.drafted for one in stats),
            "rounds": sum(one.rounds for one in stats),
            "missed": sum(one.missed for one in stats),
            "rounds_by_plan": _rounds_by_plan(stats),
            "round_ms": mean_parts_ms([part for one in taken for part in one.rounds]),
            "drafters": sorted({one.drafter_id for one in stats if one.drafter_id}),
            "drafter_trouble": sorted({one.drafter_trouble for one in stats} - {""}),
        }


def _rounds_by_plan(stats: Sequence[pb.SpeculationStats]) -> dict[str, int]:
    """Return how many rounds each plan was in use, the commonest first; plain decoding is 0x1x1."""
    counts: Counter[str] = Counter()
    for use in (use for one in stats for use in one.plans):
        counts[Arm.fixed(tree_of(Plan.from_proto(use.plan))).name] += use.rounds
    return dict(counts.most_common())
