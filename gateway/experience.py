"""What a gateway has learned: what rounds cost at its target, and how good its drafters are.

Sans-I/O. All sessions share it and add to it; it decides nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.acceptance import Acceptance
from gateway.affinity import Factor
from gateway.calls import Calls
from gateway.costs import Costs
from gateway.plans import CHAINS, TREES
from gateway.purse import Purse
from protos.messages import Plan

# Sessions from which on they weigh on each other.
_MANY = 4


@dataclass(frozen=True)
class Estimate:
    """What a plan would bring."""

    plan: Plan
    gain: float
    """Its tokens a second over those of plain decoding."""
    sure_gain: float
    """The same, at the lower end of what the acceptance may be."""
    hopeful_gain: float
    """And at its upper end."""


@dataclass
class Kept:
    """How much of a plan's trees is verified after trimming, and how much of what was right."""

    rows: float = 0.0
    right: float = 0.0
    verified_right: float = 0.0
    count: float = 0.0

    _DECAY = 0.98

    def add(self, rows: int, right: int, verified_right: int) -> None:
        """Take a round in."""
        self.rows = self.rows * self._DECAY + rows
        self.right = self.right * self._DECAY + right
        self.verified_right = self.verified_right * self._DECAY + verified_right
        self.count = self.count * self._DECAY + 1

    def rows_of(self, plan: Plan) -> float:
        """Return the rows of a round, the root's included."""
        return self.rows / self.count if self.count else plan.draft_tokens

    @property
    def share_of_right(self) -> float:
        """Return the share of the right guesses that trimming left."""
        return min((self.verified_right + 1) / (self.right + 1), 1.0)


@dataclass
class Experience:
    """Shared by the sessions of a gateway."""

    costs: Costs = field(default_factory=Costs)
    acceptance: dict[str, Acceptance] = field(default_factory=lambda: defaultdict(Acceptance))
    purse: Purse = field(default_factory=Purse)
    num_sessions: int = 0
    """Sessions that decode now."""
    trying: int = 0
    """Sessions in a trial."""
    speculating: int = 0
    """Sessions that take rounds with drafts now."""
    calls: Calls = field(default_factory=Calls)
    scouting: int = 0
    """Sessions that scouts follow."""
    default_drafter: str = ""
    """The one that sessions got which named none."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Of the drafters that are served, by id."""
    rivals: tuple[str, ...] = ()
    """The others that are served: a session that names none may find one of them better."""
    _kept: dict[tuple[str, Plan], Kept] = field(default_factory=lambda: defaultdict(Kept))

    def kept(self, drafter_id: str, plan: Plan) -> Kept:
        """Return what is verified of a drafter's trees.

        Only of the plans to choose from: requests may name thousands of others.
        """
        return self._kept[drafter_id, plan] if plan in (*CHAINS, *TREES) else Kept()

    @property
    def is_busy(self) -> bool:
        """Whether so many sessions decode that a row, or a frame a token, is dear."""
        return self.num_sessions >= _MANY

    @property
    def all_decode_plainly(self) -> bool:
        """Whether a plain step is what it would be without speculation."""
        return not self.speculating

    @property
    def plain_us(self) -> float:
        """Return the time of a plain step under the load of now."""
        return self.costs.plain_us(self.num_sessions)

    def round_us(self, plan: Plan, drafter_id: str, rows: float) -> float:
        """Return the time of a round of so many rows a session under the load of now."""
        return self.costs.round_us(plan, drafter_id, rows, self.num_sessions)

    def gain_together(self, gain_us: float) -> None:
        """A session gained so much in a step, or lost it, since those who draft have begun."""
        self.calls.gain(gain_us, self.plain_us, self.num_sessions)

    def estimate(self, drafter_id: str, plan: Plan, factor: Factor, caution: float) -> Estimate:
        """Return what a plan would bring in a session that is `factor` as good as others.

        `caution` is how many standard errors of the acceptance are taken off to be sure.
        """
        kept = self.kept(drafter_id, plan)
        usual, usual_error = self.acceptance[drafter_id].expected(plan)
        speed = self.plain_us / self.round_us(plan, drafter_id, kept.rows_of(plan))
        right = usual * factor.mean
        error = caution * math.hypot(usual_error * factor.mean, usual * factor.error)
        least, most = max(right - error, 0.0), min(right + error, plan.steps)
        gains = [(1 + count * kept.share_of_right) * speed for count in (right, least, most)]
        return Estimate(plan, *gains)

    def state(self) -> dict[str, Any]:
        """Return what is worth knowing after a restart, as plain values for JSON."""
        return {
            "costs": self.costs.state(),
            "acceptance": {name: one.state() for name, one in self.acceptance.items()},
            "default_drafter": self.default_drafter,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Begin with what `state` returned. Raises ValueError, KeyError or TypeError if damaged."""
        self.costs.restore(state["costs"])
        for name, one in state["acceptance"].items():
            self.acceptance[name].restore(one)
        self.default_drafter = str(state["default_drafter"])
