"""What a round costs at one target, from the timings that ride in every verdict and tree.

    round = other + draft(plan) + verify(rows)         other: hops, queues, waiting, our own time
    plain = plain_other + verify(1 row a session)      a step of a session that runs on by itself

Sans-I/O; microseconds. Everything is measured while serving, on rounds that were wanted anyway and
on a few plain ones: a comparison with plain decoding is never one with a guess.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from gateway.curve import Average, Curve
from protos.messages import DraftTimings, Plan, VerifyTimings

# One more row of a forward, in forwards of one row, until it is measured: usually it is less.
_ROW_SLOPE = 0.05
# So is one more step of a draft: as much as the first.
_STEP_SLOPE = 1.0
# Other gateways' sessions come and go at once, other costs do not.
_SHARING_SHARE = 0.05


@dataclass
class DraftCosts:
    """What one drafter's trees cost by depth, for chains and for trees apart."""

    extend: Average = field(default_factory=Average)
    grow: dict[int, Curve] = field(default_factory=lambda: defaultdict(lambda: Curve(_STEP_SLOPE)))

    def add(self, plan: Plan, timings: DraftTimings) -> None:
        """Take in a tree's timings."""
        self.extend.add(timings.extend_us)
        self.grow[plan.top_k].add(plan.steps, timings.grow_us)

    def of(self, plan: Plan) -> float:
        """Return the time of a tree. A width that was never grown costs what the nearest does."""
        measured = [width for width, curve in self.grow.items() if curve]
        if not measured or not plan.steps:
            return self.extend.value
        nearest = min(measured, key=lambda width: abs(width - plan.top_k))
        return self.extend.value + self.grow[nearest].at(plan.steps)


class Costs:
    """One target's costs, and those of the drafters that draft for it."""

    def __init__(self) -> None:
        self.verify = Curve(_ROW_SLOPE)
        self.plain_other = Average()
        self.other: dict[str, Average] = defaultdict(Average)
        self.draft: dict[str, DraftCosts] = defaultdict(DraftCosts)
        # Rows of a forward, and of them a session's own.
        self._rows, self._own_rows = Average(), Average()

    def add_plain(self, round_us: float, verify: VerifyTimings) -> None:
        """Take in a step of a session that runs on by itself."""
        self._add_verify(verify, own_rows=1)
        self.plain_other.add(max(round_us - _work_us(verify), 1.0))

    def add_round(
        self,
        plan: Plan,
        drafter_id: str,
        own_rows: int,
        round_us: float,
        timings: tuple[VerifyTimings, DraftTimings],
    ) -> None:
        """Take in a round whose tree had been asked for with `plan`."""
        verify, draft = timings
        self._add_verify(verify, own_rows)
        self.draft[drafter_id].add(plan, draft)
        drafting_us = draft.extend_us + draft.grow_us
        self.other[drafter_id].add(max(round_us - _work_us(verify) - drafting_us, 1.0))

    def add_miss(self, drafter_id: str, round_us: float, verify: VerifyTimings) -> None:
        """Take in a round that waited for a draft in vain."""
        self.other[drafter_id].add(max(round_us - _work_us(verify), 1.0))

    def _add_verify(self, verify: VerifyTimings, own_rows: int) -> None:
        self.verify.add(max(verify.rows, 1), _work_us(verify))
        self._rows.add(max(verify.rows, own_rows), _SHARING_SHARE)
        self._own_rows.add(own_rows, _SHARING_SHARE)

    @property
    def sharing(self) -> float:
        """Return how many sessions share a forward."""
        return self._rows.value / self._own_rows.value if self._rows.weight else 1.0

    @property
    def knows_plain(self) -> bool:
        """Whether a plain step was ever measured."""
        return self.plain_other.weight > 0

    def knows(self, drafter_id: str) -> bool:
        """Whether a round with this drafter was ever measured."""
        return self.other[drafter_id].weight > 0

    def plain_us(self, num_sessions: int) -> float:
        """Return the time of a plain step that so many sessions share at least."""
        return self.plain_other.value + self._verify_us(1, num_sessions)

    def round_us(self, plan: Plan, drafter_id: str, rows: float, num_sessions: int) -> float:
        """Return the time of a round that so many sessions share at least, each with such rows."""
        draft_us = self.draft[drafter_id].of(plan)
        return self._other_us(drafter_id) + draft_us + self._verify_us(rows, num_sessions)

    def _verify_us(self, rows: float, num_sessions: int) -> float:
        return self.verify.at(rows * max(self.sharing, num_sessions))

    def _other_us(self, drafter_id: str) -> float:
        """Return what else a round takes; for a drafter that never led, what it takes others."""
        if self.knows(drafter_id):
            return self.other[drafter_id].value
        known = [mean.value for mean in self.other.values() if mean.weight]
        return min(known, default=self.plain_other.value)

    def state(self) -> dict[str, Any]:
        """Return what is known as plain values, for JSON."""
        return {
            "verify": self.verify.points(),
            "plain_other": self.plain_other.value,
            "other": {name: mean.value for name, mean in self.other.items() if mean.weight},
            "draft": {
                name: {
                    "extend": costs.extend.value,
                    "grow": {width: curve.points() for width, curve in costs.grow.items()},
                }
                for name, costs in self.draft.items()
            },
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Begin with what `state` returned. It gives way to measurements at once."""
        self.verify.restore(_by_amount(state["verify"]))
        if state["plain_other"]:
            self.plain_other = Average(float(state["plain_other"]), 1)
        for name, value in state["other"].items():
            self.other[name] = Average(float(value), 1)
        for name, costs in state["draft"].items():
            self.draft[name].extend = Average(float(costs["extend"]), 1)
            for width, points in costs["grow"].items():
                self.draft[name].grow[int(width)].restore(_by_amount(points))


def _by_amount(points: dict[str, Any]) -> dict[int, float]:
    """JSON has no numbers as keys."""
    return {int(amount): float(cost) for amount, cost in points.items()}


def _work_us(verify: VerifyTimings) -> int:
    return verify.forward_us + verify.accept_us
