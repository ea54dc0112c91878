"""Speculate where it surely gains; otherwise decode plainly, and try again later.

    plain stretch ──a little before its end──▶ gain sure?   begin a spell
                                               may be?      begin a trial, if the purse affords it
                                               otherwise    another stretch, longer than the last
    spell ──before every round──▶ lost too much?                          a plain stretch
          ──every few rounds────▶ another drafter or plan clearly better? change to it
          ──more rarely─────────▶ measure plain decoding, a larger plan and the smallest one

Now and then those drafters that cost little scout: what they draft is compared with the text and
never verified. So each session finds the drafter that suits it.

Sans-I/O. The gain is the expected tokens of a round over the tokens that plain decoding would have
had in its time; both are estimated from what was measured (experience.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.acceptance import Affinity
from gateway.candidates import SCOUTING, Candidates
from gateway.experience import Experience
from gateway.lessons import Lessons, Round
from gateway.plans import EXPLORING, NO_DRAFTS
from gateway.scouting import Scouting
from gateway.spell import SPELL_LOSS, TRIAL_LOSS, Spell
from protos.messages import DraftTree, Plan

# Plain tokens for as long as the answer goes on.
FOR_GOOD = 1 << 31
# Plain tokens: before the first trial, to measure plain decoding anew, while a drafter is awaited
# or gone, and before one trial after another.
_FIRST_STRETCH = 6
_SHORT_STRETCH = 4
_ABSENT_STRETCH = 16
_PAUSES = (32, 64, 128, 256)
# So many tokens before a plain stretch ends it is decided what follows: drafters need time to join.
_LEAD = 8
# A drafter that should gain less is tried after so many pauses only.
_HOPEFUL = 0.97
_HOPELESS_PAUSES = 3
# What joining costs a target that shares its machine with the drafter, in plain steps.
_JOINING = 1.5
# The gain with which to begin, and how much better another plan must be.
_ENTER = 1.02
_CLEARLY_BETTER = 1.03
# While scouts are out it is decided anew after so few plain tokens.
_SCOUTED_STRETCH = 8


class AutoPolicy:
    """One session's. `limits` are the largest plan that may be used."""

    def __init__(self, experience: Experience, limits: Plan, drafter_id: str) -> None:
        self._experience = experience
        self._drafters = Candidates(experience, limits, drafter_id)
        self._lead = drafter_id
        # None: a plain stretch.
        self._spell: Spell | None = None
        self._pauses_taken = 0
        self._num_tokens = 0
        experience.num_sessions += 1
        self._scouting = Scouting(experience)
        self._scouting.look_at(0)

    @property
    def lead(self) -> str:
        return self._lead

    @property
    def wants_drafter(self) -> bool:
        return self._spell is not None

    @property
    def scouts(self) -> Mapping[str, Plan]:
        """Those that may lead and cost little, now and then."""
        if not self._scouting.is_on or not self._drafters.plans:
            return {}
        leads = self._spell is not None
        return dict.fromkeys(self._drafters.remote_scouts(self._lead, leads=leads), SCOUTING)

    def plan(self, plain_left: int) -> Plan:
        """While plain tokens are to come drafts are of no use, but for the round after the last."""
        return NO_DRAFTS if self._spell is None or plain_left > 1 else self._spell.plan

    def patience_s(self, longest_s: float) -> float:
        """Waiting longer than the draft's tokens would have taken plainly cannot pay."""
        if self._spell is None or not self._experience.costs.knows_plain:
            return longest_s
        right, _ = self._leading.acceptance.expected(self._spell.plan)
        return min(longest_s, max(right, 1.0) * self._experience.plain_us / 1e6)

    @property
    def _leading(self) -> Lessons:
        return self._drafters[self._lead]

    def more_plain(self, plain_left: int, *, drafter_open: bool) -> int:
        """Decide a little before a plain stretch ends, and before every round."""
        if not self._drafters.plans:
            return 0 if plain_left else FOR_GOOD
        if self._spell is None:
            return self._consider() if plain_left <= _LEAD else 0
        if plain_left:
            return 0
        if self._gives_up(self._spell):
            self._end_spell()
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
        drafter_id, costs = self._leading.drafter_id, self._experience.costs
        survival = self._leading.acceptance.survival(tree)
        expected, best, best_speed = 0.0, most, 0.0
        for rows in range(1, most + 1):
            expected += survival[rows - 1]
            speed = expected / max(costs.round_us(plan, drafter_id, rows), 1.0)
            if speed > best_speed:
                best, best_speed = rows, speed
        return tree.trimmed(best)

    def drafter_opened(self, name: str, drafter_id: str) -> None:
        if name in self._drafters:
            self._drafters[name].drafter_id = drafter_id
        if not name:
            self._experience.default_drafter = drafter_id

    def scouted(self, name: str, tree: DraftTree) -> None:
        if name in self._drafters:
            self._drafters[name].scouted(tree, SCOUTING)

    def learn(self, one: Round, tokens: list[int], *, plain: bool) -> None:
        self._num_tokens += one.num_tokens
        self._experience.purse.pass_time(one.took_us)
        if plain and self._is_undisturbed:
            self._leading.plain(one)
        elif self._spell is not None and (one.waited or one.drafted is not None):
            self._learn_round(one, self._spell)
        self._drafters.judge(tokens)
        self._scouting.look_at(self._num_tokens)
        if self._scouting.is_on:
            self._drafters.scout_here(tokens)

    @property
    def _is_undisturbed(self) -> bool:
        """Whether a plain step is one as if there were no drafters: none joins, none drafts."""
        return not self.scouts and (self._spell is None or self._spell.rounds > 0)

    def _learn_round(self, one: Round, spell: Spell) -> None:
        spell.count(missed=one.waited)
        gain_us = self._leading.round(one, spell.plan if spell.settled else None)
        if (spell.settled or one.waited) and self._experience.costs.knows_plain:
            spell.gain(gain_us, self._experience.plain_us)

    def end(self) -> None:
        self._end_spell()
        self._scouting.end()
        self._experience.num_sessions -= 1

    def _begin_spell(self, name: str, plan: Plan, *, is_trial: bool = False) -> None:
        self._lead = name
        # Scouts have seen little of a session.
        is_short = is_trial or self._drafters.may_scout(name)
        self._spell = Spell(plan, TRIAL_LOSS if is_short else SPELL_LOSS, is_trial=is_trial)
        self._experience.trying += is_trial

    def _end_spell(self) -> None:
        if self._spell is not None:
            self._experience.purse.settle(self._spell.total_us)
            self._experience.trying -= self._spell.is_trial
            self._spell = None

    def _consider(self) -> int:
        """Decide what follows a plain stretch. Returns the plain tokens of another one."""
        if not self._experience.costs.knows_plain:
            return _FIRST_STRETCH
        # What scouts bring is known without a trial.
        others = [name for name in self._drafters if not self._drafters.may_scout(name)]
        strangers = [name for name in others if not self._drafters.was_tried(name)]
        if self._begins_trial(strangers) or self._begins_surely() or self._begins_trial(others):
            return 0
        scouted = self._scouting.is_on and any(map(self._drafters.may_scout, self._drafters))
        return _SCOUTED_STRETCH if scouted else self._pause()

    def _begins_surely(self) -> bool:
        """Begin the best of the drafters that are known, if it surely gains."""
        known = [name for name in self._drafters if self._drafters.is_known(name)]
        if not known or self._experience.purse.is_empty:
            return False
        name, best = self._drafters.best(known)
        if best.sure_gain > _ENTER:
            self._begin_spell(name, best.plan)
        return best.sure_gain > _ENTER

    def _begins_trial(self, names: Sequence[str]) -> bool:
        """Begin one of these drafters if it is due and there is time to lose: one at a time."""
        if not names or self._experience.trying or not self._experience.purse.affords_trial:
            return False
        name, best = self._drafters.best(names)
        known = self._drafters.was_tried(name)
        if known and self._pauses_taken < (1 if best.gain > _HOPEFUL else _HOPELESS_PAUSES):
            return False
        # What this session was like is what is tried.
        self._drafters[name].affinity = Affinity()
        self._experience.purse.settle(-_JOINING * self._experience.plain_us)
        self._begin_spell(name, best.plan if known else self._first_choice, is_trial=True)
        return True

    @property
    def _exploring(self) -> Plan:
        """Return the plan that tells most, within the limits."""
        return EXPLORING if EXPLORING in self._drafters.plans else self._drafters.plans[-1]

    @property
    def _first_choice(self) -> Plan:
        """Return what to try of an unknown drafter: much, and if that came too late, little."""
        return self._drafters.plans[0] if self._pauses_taken % 2 else self._exploring

    def _pause(self) -> int:
        """Return how long to decode plainly before the next trial: longer every time."""
        pause = _PAUSES[min(self._pauses_taken, len(_PAUSES) - 1)]
        self._pauses_taken += 1
        return pause

    def _gives_up(self, spell: Spell) -> bool:
        """Whether to stop speculating; if not, the spell may have another plan now."""
        if spell.has_lost(self._experience.plain_us):
            return True
        if spell.is_long and spell.is_trial:
            self._pauses_taken, spell.loss_allowed, spell.is_trial = 0, SPELL_LOSS, False
            self._experience.trying -= 1
        return spell.wants_review() and self._review(spell)

    def _review(self, spell: Spell) -> bool:
        """Find a better plan. Returns whether none is any good, and none was."""
        name, best = self._drafters.best(self._drafters)
        current = self._drafters.estimate(self._lead, spell.home)
        if best.gain < 1 and spell.net_us <= 0:
            return True
        is_other = (name, best.plan) != (self._lead, spell.home)
        if is_other and best.gain > _CLEARLY_BETTER * current.gain:
            self._lead = name
            spell.change(best.plan)
        elif spell.looks_around:
            spell.come_home()
        else:
            spell.look_around((self._exploring, self._drafters.plans[0]))
        return False
