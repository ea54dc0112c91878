"""Speculate where it surely gains; otherwise decode plainly, and try again later.

    plain stretch ──a little before its end──▶ gain sure?   begin a spell
                                               may be?      begin a trial, if the purse affords it
                                               otherwise    another stretch, longer than the last
    spell ──before every round──▶ lost too much, or the purse is empty?  a plain stretch
          ──every few rounds────▶ another plan clearly better?           change to it
          ──more rarely─────────▶ measure plain decoding, and a larger plan

Sans-I/O. The gain is the expected tokens of a round over the tokens that plain decoding would have
had in its time; both are estimated from what was measured (experience.py).
"""

from __future__ import annotations

from gateway.acceptance import Affinity
from gateway.experience import Estimate, Experience
from gateway.lessons import Lessons, Round
from gateway.plans import EXPLORING, NO_DRAFTS, within
from gateway.spell import SPELL_LOSS, TRIAL_LOSS, Spell
from protos.messages import DraftTree, Plan

_FOR_GOOD = 1 << 31
# Plain tokens: before the first trial, to measure plain decoding anew, while a drafter is awaited
# or gone, and before one trial after another.
_FIRST_STRETCH = 6
_SHORT_STRETCH = 4
_ABSENT_STRETCH = 16
_PAUSES = (32, 64, 128, 256)
# So many tokens before a plain stretch ends it is decided what follows: drafters need time to join.
_LEAD = 8
# Rounds after which a drafter is known.
_KNOWN_AFTER = 24
# The gain with which to begin, and how much better another plan must be.
_ENTER = 1.02
_CLEARLY_BETTER = 1.03
# Standard errors of the acceptance that are taken off to be sure.
_CAUTION = 1.0


class AutoPolicy:
    """One session's. `limits` are the largest plan that may be used."""

    def __init__(self, experience: Experience, limits: Plan, drafter_id: str) -> None:
        self._experience = experience
        self._choices = within(limits)
        self._lessons = Lessons(experience, drafter_id or experience.default_drafter)
        self._names_drafter = bool(drafter_id)
        # None: a plain stretch.
        self._spell: Spell | None = None
        self._pauses_taken = 0
        experience.num_sessions += 1

    @property
    def wants_drafter(self) -> bool:
        return self._spell is not None

    def plan(self, plain_left: int) -> Plan:
        """While plain tokens are to come drafts are of no use, but for the round after the last."""
        return NO_DRAFTS if self._spell is None or plain_left > 1 else self._spell.plan

    def patience_s(self, longest_s: float) -> float:
        """Waiting longer than the draft's tokens would have taken plainly cannot pay."""
        if self._spell is None or not self._experience.costs.knows_plain:
            return longest_s
        right, _ = self._experience.acceptance[self._lessons.drafter_id].expected(self._spell.plan)
        return min(longest_s, max(right, 1.0) * self._experience.plain_us / 1e6)

    def more_plain(self, plain_left: int, *, drafter_open: bool) -> int:
        """Decide a little before a plain stretch ends, and before every round."""
        if not self._choices:
            return 0 if plain_left else _FOR_GOOD
        if self._spell is None:
            return self._consider() if plain_left <= _LEAD else 0
        if plain_left:
            return 0
        if self._gives_up(self._spell):
            self._spell = None
            return self._pause()
        if not drafter_open:
            return _ABSENT_STRETCH if self._spell.rounds else _SHORT_STRETCH
        return _SHORT_STRETCH if self._spell.wants_plain() else 0

    def trim(self, tree: DraftTree, remaining: int) -> DraftTree:
        """Keep the first nodes that bring the most tokens a second, all costs counted."""
        plan = self.plan(0)
        most = max(1, min(len(tree.tokens), plan.draft_tokens, remaining))
        # To be looked at is to be measured whole.
        if most == 1 or self._spell is None or self._spell.looks_around:
            return tree.trimmed(most)
        drafter_id, costs = self._lessons.drafter_id, self._experience.costs
        survival = self._experience.acceptance[drafter_id].survival(tree)
        expected, best, best_speed = 0.0, most, 0.0
        for rows in range(1, most + 1):
            expected += survival[rows - 1]
            speed = expected / max(costs.round_us(plan, drafter_id, rows), 1.0)
            if speed > best_speed:
                best, best_speed = rows, speed
        return tree.trimmed(best)

    def drafter_opened(self, drafter_id: str) -> None:
        self._lessons.drafter_id = drafter_id
        if not self._names_drafter:
            self._experience.default_drafter = drafter_id

    def learn(self, one: Round, tokens: list[int], *, plain: bool) -> None:
        self._experience.purse.pass_time(one.took_us)
        if plain:
            self._lessons.plain(one)
        elif self._spell is not None and (one.waited or one.drafted is not None):
            self._learn_round(one, tokens, self._spell)

    def _learn_round(self, one: Round, tokens: list[int], spell: Spell) -> None:
        spell.count()
        gain_us = self._lessons.round(one, spell.plan if spell.settled else None)
        self._lessons.judge(tokens)
        if (spell.settled or one.waited) and self._experience.costs.knows_plain:
            self._experience.purse.settle(gain_us)
            spell.gain(gain_us, self._experience.plain_us)

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
            self._spell = Spell(best.plan, SPELL_LOSS)
        elif experience.purse.affords_trial and (self._pauses_taken or not known):
            # What this session was like is what is tried.
            self._lessons.affinity = Affinity()
            self._spell = Spell(best.plan if known else self._first_choice, TRIAL_LOSS)
        else:
            return self._pause()
        return 0

    @property
    def _exploring(self) -> Plan:
        """Return the plan that tells most, within the limits."""
        return EXPLORING if EXPLORING in self._choices else self._choices[-1]

    @property
    def _first_choice(self) -> Plan:
        """Return what to try of an unknown drafter: much, and if that came too late, little."""
        return self._choices[0] if self._pauses_taken % 2 else self._exploring

    def _pause(self) -> int:
        """Return how long to decode plainly before the next trial: longer every time."""
        pause = _PAUSES[min(self._pauses_taken, len(_PAUSES) - 1)]
        self._pauses_taken += 1
        return pause

    def _gives_up(self, spell: Spell) -> bool:
        """Whether to stop speculating; if not, the spell may have another plan now."""
        if spell.has_lost(self._experience.plain_us) or self._experience.purse.is_empty:
            return True
        if spell.is_long:
            self._pauses_taken, spell.loss_allowed = 0, SPELL_LOSS
        return spell.wants_review() and self._review(spell)

    def _review(self, spell: Spell) -> bool:
        """Find a better plan. Returns whether none is any good, and none was."""
        best, current = self._best(), self._estimate(spell.home)
        if best.gain < 1 and spell.net_us <= 0:
            return True
        if best.plan != spell.home and best.gain > _CLEARLY_BETTER * current.gain:
            spell.change(best.plan)
        elif spell.looks_around:
            spell.come_home()
        else:
            spell.look_around(self._exploring)
        return False

    def _best(self) -> Estimate:
        return max((self._estimate(plan) for plan in self._choices), key=lambda one: one.gain)

    def _estimate(self, plan: Plan) -> Estimate:
        lessons = self._lessons
        return self._experience.estimate(
            lessons.drafter_id, plan, lessons.affinity.factor, _CAUTION
        )
