"""How far to speculate: every round of a session, from what rounds cost and what they brought.

Sans-I/O: knows neither tensors nor sockets.

    off, fixed    one answer to all questions: no drafts, or always this plan
    auto          speculate where it surely gains; otherwise decode plainly, and try again later

A session is always in one of two states: it decodes plainly for a number of tokens, of which the
target is told at once, or it takes rounds with a standing plan. Both kinds of policy teach.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gateway.experience import Estimate, Experience
from gateway.lessons import Lessons, Round
from gateway.plans import EXPLORING, within
from protos.messages import MAX_TREE_NODES, DraftTree, Plan

NO_DRAFTS = Plan(steps=0)
NO_LIMIT = Plan(MAX_TREE_NODES - 1, MAX_TREE_NODES - 1, MAX_TREE_NODES)
# The depth of a fixed plan that does not name one.
FIXED_STEPS = 5
_FOR_GOOD = 1 << 31

# Auto, in rounds and plain tokens.
_REVIEW_EVERY = 8
_PLAIN_EVERY = 64
_SHORT_STRETCH = 4
_ABSENT_STRETCH = 16
_LEAD = 8
_FIRST_STRETCH = 6
_PAUSES = (32, 64, 128, 256)
_LONG_SPELL = 64
_EXPLORE_AFTER = (64, 128, 256, 512)
_SETTLED_AFTER = 2
_KNOWN_AFTER = 24
# To begin and to change one's mind there must be something in it.
_ENTER = 1.02
_LEAD_OF_ANOTHER = 1.03
_CAUTION = 1.0
# Losses, in plain steps, after which a trial or a spell ends; gains do not add up to more.
_TRIAL_LOSS = 1.5
_SPELL_LOSS = 3.0
_MOST_GAIN = 4.0


@dataclass(frozen=True)
class Wish:
    """What a request says of speculation: `mode` "off", "fixed" or "auto".

    `plan` is the one to keep to if fixed, the largest one if auto.
    """

    mode: str
    plan: Plan


class Policy(Protocol):
    """One session's. See the module's docstring."""

    @property
    def wants_drafter(self) -> bool:
        """Whether a drafter should follow the session now."""

    def plan(self, plain_left: int) -> Plan:
        """Return what the drafter is to be asked for, with so many plain tokens to come."""

    def patience_s(self, longest_s: float) -> float:
        """Return how long a round may wait for a draft, at most `longest_s`."""

    def more_plain(self, plain_left: int, *, drafter_open: bool) -> int:
        """Return how many plain tokens are to follow those that are left; 0 for none."""

    def trim(self, tree: DraftTree, remaining: int) -> DraftTree:
        """Return what is worth verifying when at most `remaining` more tokens are wanted."""

    def drafter_opened(self, drafter_id: str) -> None:
        """This drafter follows the session."""

    def learn(self, one: Round, tokens: list[int], *, plain: bool) -> None:
        """Take in a round, after which `tokens` are committed; `plain`: of a plain stretch."""

    def end(self) -> None:
        """The session is over."""


class FixedPolicy:
    """Always the same plan; with one that asks for no drafts, all is decoded plainly."""

    def __init__(self, plan: Plan, experience: Experience) -> None:
        self._plan = plan if plan.draft_tokens > 1 else NO_DRAFTS
        self._lessons = Lessons(experience, "")
        self._experience = experience
        experience.num_sessions += 1

    @property
    def wants_drafter(self) -> bool:
        return self._plan.steps > 0

    def plan(self, plain_left: int) -> Plan:
        del plain_left
        return self._plan

    def patience_s(self, longest_s: float) -> float:
        return longest_s

    def more_plain(self, plain_left: int, *, drafter_open: bool) -> int:
        del drafter_open
        return 0 if self.wants_drafter or plain_left else _FOR_GOOD

    def trim(self, tree: DraftTree, remaining: int) -> DraftTree:
        return tree.trimmed(max(1, min(self._plan.draft_tokens, remaining)))

    def drafter_opened(self, drafter_id: str) -> None:
        self._lessons.drafter_id = drafter_id

    def learn(self, one: Round, tokens: list[int], *, plain: bool) -> None:
        if plain:
            self._lessons.plain(one)
        elif self.wants_drafter:
            self._lessons.round(one, self._plan)
            self._lessons.judge(tokens)

    def end(self) -> None:
        self._experience.num_sessions -= 1


class AutoPolicy:
    """Speculates where the gain is sure. `limits` are the largest plan that may be used."""

    def __init__(self, experience: Experience, limits: Plan, drafter_id: str) -> None:
        self._experience = experience
        self._choices = within(limits)
        self._lessons = Lessons(experience, drafter_id or experience.default_drafter)
        self._names_drafter = bool(drafter_id)
        # The standing plan of a spell of rounds. None: a plain stretch.
        self._plan: Plan | None = None
        self._net_us = 0.0
        self._loss_allowed = _SPELL_LOSS
        self._rounds = 0
        self._since_change = 0
        self._since_plain = 0
        self._pauses_taken = 0
        # The plan to come back to from one that is only looked at, and what the net was then.
        self._home: Plan | None = None
        self._home_net_us = 0.0
        self._reviewed_at = 0
        self._explored_at = 0
        self._explorations = 0
        experience.num_sessions += 1

    @property
    def wants_drafter(self) -> bool:
        return self._plan is not None

    def plan(self, plain_left: int) -> Plan:
        """While plain tokens are to come drafts are of no use, but for the round after the last."""
        return NO_DRAFTS if self._plan is None or plain_left > 1 else self._plan

    def patience_s(self, longest_s: float) -> float:
        """Waiting longer than the draft's tokens would have taken plainly cannot pay."""
        if self._plan is None or not self._experience.costs.knows_plain:
            return longest_s
        right, _ = self._experience.acceptance[self._lessons.drafter_id].expected(self._plan)
        return min(longest_s, max(right, 1.0) * self._experience.plain_us / 1e6)

    def more_plain(self, plain_left: int, *, drafter_open: bool) -> int:
        """Decide a little before a plain stretch ends, and before every round."""
        if not self._choices:
            return 0 if plain_left else _FOR_GOOD
        if self._plan is None and plain_left <= _LEAD:
            return self._consider()
        if plain_left:
            return 0
        self._review()
        if self._plan is None:
            return self._pause()
        if not drafter_open:
            return _ABSENT_STRETCH if self._rounds else _SHORT_STRETCH
        if self._since_plain >= _PLAIN_EVERY:
            self._since_plain = 0
            return _SHORT_STRETCH
        return 0

    def trim(self, tree: DraftTree, remaining: int) -> DraftTree:
        """Keep the first nodes that bring the most tokens a second, all costs counted."""
        plan = self._plan or NO_DRAFTS
        most = max(1, min(len(tree.tokens), plan.draft_tokens, remaining))
        if not self._experience.costs.verify or most == 1 or self._home is not None:
            return tree.trimmed(most)
        survival = self._experience.acceptance[self._lessons.drafter_id].survival(tree)
        expected, best, best_speed = 0.0, 1, 0.0
        for rows in range(1, most + 1):
            expected += survival[rows - 1]
            round_us = self._experience.costs.round_us(plan, self._lessons.drafter_id, rows)
            if expected / round_us > best_speed:
                best, best_speed = rows, expected / round_us
        return tree.trimmed(best)

    def drafter_opened(self, drafter_id: str) -> None:
        self._lessons.drafter_id = drafter_id
        if not self._names_drafter:
            self._experience.default_drafter = drafter_id

    def learn(self, one: Round, tokens: list[int], *, plain: bool) -> None:
        self._experience.purse.pass_time(one.took_us)
        if plain:
            self._lessons.plain(one)
        elif self._plan is not None and (one.waited or one.drafted is not None):
            self._learn_round(one, tokens, self._plan)

    def _learn_round(self, one: Round, tokens: list[int], plan: Plan) -> None:
        self._rounds += 1
        self._since_change += 1
        self._since_plain += 1
        settled = self._since_change > _SETTLED_AFTER
        gain_us = self._lessons.round(one, plan if settled else None)
        self._lessons.judge(tokens)
        if settled and self._experience.costs.knows_plain:
            self._experience.purse.settle(gain_us)
            most_us = _MOST_GAIN * self._experience.plain_us
            self._net_us = min(self._net_us + gain_us, most_us)

    def end(self) -> None:
        self._experience.num_sessions -= 1

    def _consider(self) -> int:
        """Decide what follows a plain stretch. Returns the plain tokens of another one."""
        experience, drafter_id = self._experience, self._lessons.drafter_id
        if not experience.costs.knows_plain:
            return _FIRST_STRETCH
        known = experience.acceptance[drafter_id].rounds >= _KNOWN_AFTER
        best = self._best()
        if known and best.sure_gain > _ENTER and not experience.purse.is_empty:
            self._begin(best.plan, _SPELL_LOSS)
        elif experience.purse.affords_trial and (self._pauses_taken or not known):
            self._lessons.affinity = type(self._lessons.affinity)()
            self._begin(best.plan if known else self._first_choice, _TRIAL_LOSS)
        else:
            return self._pause()
        return 0

    @property
    def _exploring(self) -> Plan:
        """Return the plan that tells most, within the limits."""
        return next((plan for plan in self._choices if plan == EXPLORING), self._choices[-1])

    @property
    def _first_choice(self) -> Plan:
        """Return what to try of an unknown drafter: much, and if that came too late, little."""
        return self._choices[0] if self._pauses_taken % 2 else self._exploring

    def _begin(self, plan: Plan, loss_allowed: float) -> None:
        self._plan, self._loss_allowed = plan, loss_allowed
        self._net_us, self._rounds, self._since_change, self._since_plain = 0.0, 0, 0, 0
        self._reviewed_at, self._explored_at, self._explorations = 0, 0, 0

    def _pause(self) -> int:
        """Return how long to decode plainly before the next trial: longer every time."""
        pause = _PAUSES[min(self._pauses_taken, len(_PAUSES) - 1)]
        self._pauses_taken += 1
        return pause

    def _review(self) -> None:
        """End a spell that lost, or that should not gain; change to a plan that gains more."""
        assert self._plan is not None, "only a spell is reviewed"
        if self._home is not None and self._has_lost(self._home_net_us, _TRIAL_LOSS):
            self._come_home(self._home)
        if self._has_lost(0.0, self._loss_allowed) or self._experience.purse.is_empty:
            self._plan = self._home = None
            return
        if self._rounds == _LONG_SPELL:
            self._pauses_taken, self._loss_allowed = 0, _SPELL_LOSS
        if self._rounds - self._reviewed_at >= _REVIEW_EVERY:
            self._reviewed_at = self._rounds
            self._change_plan(self._home or self._plan)

    def _has_lost(self, from_us: float, steps: float) -> bool:
        return self._net_us < from_us - steps * self._experience.plain_us

    def _change_plan(self, home: Plan) -> None:
        """Take the best plan if it is clearly better; now and then look at another one."""
        best, current = self._best(), self._estimate(home)
        if best.gain < 1 and self._net_us <= 0:
            self._plan = self._home = None
        elif best.plan != home and best.gain > _LEAD_OF_ANOTHER * current.gain:
            self._plan, self._home, self._since_change = best.plan, None, 0
            self._explorations = 0
        elif self._home is not None:
            self._come_home(home)
        elif self._rounds - self._explored_at >= self._explore_after:
            self._explore(home)

    def _come_home(self, home: Plan) -> None:
        self._plan, self._home, self._since_change = home, None, 0
        self._net_us = max(self._net_us, self._home_net_us)

    @property
    def _explore_after(self) -> int:
        """The rounds from one look at another plan to the next: more, the less it helped."""
        return _EXPLORE_AFTER[min(self._explorations, len(_EXPLORE_AFTER) - 1)]

    def _explore(self, home: Plan) -> None:
        """Use a larger plan until the next review: what it costs may have changed unseen."""
        self._explored_at = self._rounds
        self._explorations += 1
        if home != self._exploring:
            self._home, self._home_net_us = home, self._net_us
            self._plan, self._since_change = self._exploring, 0

    def _best(self) -> Estimate:
        return max((self._estimate(plan) for plan in self._choices), key=lambda one: one.gain)

    def _estimate(self, plan: Plan) -> Estimate:
        lessons = self._lessons
        return self._experience.estimate(
            lessons.drafter_id, plan, lessons.affinity.factor, _CAUTION
        )


def policy_for(wish: Wish, experience: Experience, drafter_id: str) -> Policy:
    """Return the policy of one session. Whoever takes it must `end` it."""
    if wish.mode == "auto":
        return AutoPolicy(experience, wish.plan, drafter_id)
    return FixedPolicy(wish.plan, experience)
