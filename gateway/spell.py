"""A spell of rounds with drafts: what it gained so far, and when to look up. Sans-I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protos.messages import Plan

# In rounds.
_REVIEW_EVERY = 8
_LOOK_AROUND_AFTER = (32, 64, 128, 256, 512)
_PLAIN_AFTER = (64, 128)
_MOST_MISSED = 3
_SETTLED_AFTER = 2
_LONG = 64
# In plain steps: losses after which a trial or another spell ends, and after which a look at
# another plan does. Gains do not add up to more than the last.
TRIAL_LOSS = 1.5
SPELL_LOSS = 2.0
# The same of one session of many that gain together, for all of them bear its luck.
MEMBER_LOSS = 8.0
MOST_GAIN = 4.0


@dataclass
class Spell:
    """Rounds under one plan after another, until speculation is given up."""

    plan: Plan
    loss_allowed: float
    rounds: int = 0
    net_us: float = 0.0
    """Gained against plain decoding; no more than a few steps, so that losses show at once."""
    total_us: float = 0.0
    """The same, all of it."""
    is_trial: bool = False
    _home: Plan | None = None
    """The plan to come back to from one that is only looked at."""
    _home_net_us: float = 0.0
    _missed: int = 0
    _since_change: int = 0
    _since_plain: int = 0
    _plain_stretches: int = 0
    _reviewed_at: int = 0
    _looked_at: int = 0
    _looks: int = 0

    @property
    def settled(self) -> bool:
        """Whether rounds are under the plan of now: a drafter hears of a change a round late."""
        return self._since_change > _SETTLED_AFTER

    @property
    def looks_around(self) -> bool:
        """Whether its plan is only looked at."""
        return self._home is not None

    @property
    def home(self) -> Plan:
        """The plan that was chosen."""
        return self._home or self.plan

    @property
    def has_looked(self) -> bool:
        """Whether another plan was looked at before."""
        return self._looked_at > 0

    @property
    def is_long(self) -> bool:
        return self.rounds >= _LONG

    def count(self, *, missed: bool) -> None:
        """One more round; `missed`: it waited for a draft in vain."""
        self._missed = self._missed + 1 if missed else 0
        self.rounds += 1
        self._since_change += 1
        self._since_plain += 1

    def gain(self, gain_us: float, plain_us: float) -> None:
        """A round gained so much; what is gained is forgotten beyond a few plain steps."""
        self.total_us += gain_us
        self.net_us = min(self.net_us + gain_us, MOST_GAIN * plain_us)

    def has_lost(self, plain_us: float) -> bool:
        """Whether it lost all that it may, or waits in vain all the time.

        What a look at another plan lost only ends the look.
        """
        if self._home is not None and self.net_us < self._home_net_us - TRIAL_LOSS * plain_us:
            self.come_home()
        return self.net_us < -self.loss_allowed * plain_us or self._missed >= _MOST_MISSED

    def wants_review(self) -> bool:
        """Whether it is time for one; if so, it is begun."""
        due = self.rounds - self._reviewed_at >= _REVIEW_EVERY
        if due:
            self._reviewed_at = self.rounds
        return due

    @property
    def wants_plain(self) -> bool:
        """Whether it is time to measure plain decoding."""
        pause = _PLAIN_AFTER[min(self._plain_stretches, len(_PLAIN_AFTER) - 1)]
        return self._since_plain >= pause

    def take_plain(self) -> None:
        """Plain decoding is measured now."""
        self._since_plain = 0
        self._plain_stretches += 1

    def change(self, plan: Plan) -> None:
        """Go on with another plan."""
        self.plan, self._home = plan, None
        self._since_change, self._looks = 0, 0

    def look_around(self, plans: Sequence[Plan]) -> None:
        """Now and then, use one of these plans until the next review, each in turn.

        What it costs may have changed unseen. The less it helps, the more rarely.
        """
        pause = _LOOK_AROUND_AFTER[min(self._looks, len(_LOOK_AROUND_AFTER) - 1)]
        if self.rounds - self._looked_at < pause:
            return
        plan = plans[self._looks % len(plans)]
        self._looks += 1
        self.look_at(plan)

    def look_at(self, plan: Plan) -> None:
        """Use a plan until the next review."""
        self._looked_at = self.rounds
        if plan != self.plan:
            self._home, self._home_net_us = self.home, self.net_us
            self.plan, self._since_change = plan, 0

    def come_home(self) -> None:
        """Go on with the plan that was chosen. What the look cost does not count against it."""
        if self._home is not None:
            self.plan, self._home, self._since_change = self._home, None, 0
            self.net_us = max(self.net_us, self._home_net_us)
