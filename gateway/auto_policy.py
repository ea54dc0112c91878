"""Speculate where it surely gains; otherwise decode plainly, and try again later.

    plain stretch ──a little before its end──▶ gain sure?   begin a spell
                                               may be?      begin a trial, if the purse affords it
                                               otherwise    another stretch, longer than the last
    spell ──before every round──▶ lost too much?                          a plain stretch
          ──every few rounds────▶ another drafter or plan clearly better? change to it
          ──more rarely─────────▶ measure plain decoding, a larger plan and the smallest one

Who begins calls all other sessions, and they begin, too, where it may pay (calls.py).

Now and then those drafters that cost little scout: what they draft is compared with the text and
never verified. So each session finds the drafter that suits it.

Sans-I/O. The gain is the expected tokens of a round over the tokens that plain decoding would have
had in its time; both are estimated from what was measured (experience.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.affinity import Affinity
from gateway.beginning import JOINING, SHORTEST, strangers, what_to_begin
from gateway.calls import Call, Membership
from gateway.candidates import SCOUTING, Candidates
from gateway.experience import Experience
from gateway.lessons import Lessons, Round
from gateway.plans import NO_DRAFTS
from gateway.scouting import Scouting
from gateway.spell import MEMBER_LOSS, SPELL_LOSS, TRIAL_LOSS, Spell
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
# Scouts know the text already.
_SCOUTS_LEAD = 2
# How much better another plan must be.
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
        self._membership = Membership(experience.calls)
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
        if self._spell.looks_around:
            right = float(self._spell.plan.steps)
        return min(longest_s, max(right, 1.0) * self._experience.plain_us / 1e6)

    @property
    def _leading(self) -> Lessons:
        return self._drafters[self._lead]

    def more_plain(self, plain_left: int, *, drafter_open: bool, remaining: int) -> int:
        """Decide a little before a plain stretch ends, and before every round."""
        if not self._drafters.plans:
            return 0 if plain_left else FOR_GOOD
        if self._spell is None:
            if remaining >= SHORTEST and self._answers_call():
                return min(_LEAD - plain_left, 0)
            return self._consider(plain_left, remaining) if plain_left <= _LEAD else 0
        if plain_left:
            return 0
        if self._gives_up(self._spell):
            self._end_spell(lost=True)
            return self._pause()
        if not drafter_open:
            return _ABSENT_STRETCH if self._spell.rounds else _SHORT_STRETCH
        return _SHORT_STRETCH if self._takes_plain(self._spell) else 0

    def trim(self, tree: DraftTree, remaining: int) -> DraftTree:
        """Keep the first nodes that bring the most tokens a second, all costs counted."""
        plan = self.plan(0)
        most = max(1, min(len(tree.tokens), plan.draft_tokens, remaining))
        # To be looked at is to be measured whole.
        if most == 1 or self._spell is None or self._spell.looks_around:
            return tree.trimmed(most)
        drafter_id, round_us = self._leading.drafter_id, self._experience.round_us
        survival = self._leading.acceptance.survival(tree)
        expected, best, best_speed = 0.0, most, 0.0
        for rows in range(1, most + 1):
            expected += survival[rows - 1]
            speed = expected / max(round_us(plan, drafter_id, rows), 1.0)
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
        experience = self._experience
        experience.purse.pass_time(one.took_us, experience.num_sessions)
        experience.calls.pass_tokens(one.num_tokens, experience.num_sessions)
        if plain:
            self._leading.plain(one, undisturbed=self._is_undisturbed)
        elif self._spell is not None and (one.waited or one.drafted is not None):
            self._learn_round(one, self._spell)
        self._drafters.judge(tokens)
        self._scouting.look_at(self._num_tokens)
        if self._scouting.is_on:
            self._drafters.scout_here(tokens)

    @property
    def _is_undisturbed(self) -> bool:
        """Whether a plain step is one as if there were no drafters: none joins, none drafts."""
        if self._spell is None:
            return not self.scouts and self._experience.all_decode_plainly
        # The others take the interlude, too.
        together = self._membership.is_on or self._experience.speculating == 1
        return not self.scouts and self._spell.rounds > 0 and together

    def _learn_round(self, one: Round, spell: Spell) -> None:
        spell.count(missed=one.waited)
        gain_us = self._leading.round(one, spell.plan if spell.settled else None)
        if (spell.settled or one.waited) and self._experience.costs.knows_plain:
            spell.gain(gain_us, self._experience.plain_us)
            if self._membership.is_on and not spell.looks_around:
                self._experience.gain_together(gain_us)

    def end(self) -> None:
        self._end_spell(lost=False)
        self._scouting.end()
        self._drafters.end()
        self._experience.num_sessions -= 1

    def _answers_call(self) -> bool:
        """Begin what others have begun, if this session may; it answers every call once."""
        call = self._membership.news()
        if call is None:
            return False
        name = self._drafters.name_of(call.drafter_id)
        if set(strangers(self._drafters)) - {name}:
            return False
        self._membership.answer()
        if name is None or not self._experience.costs.knows_plain:
            return False
        plan = call.plan if call.plan in self._drafters.plans else self._drafters.plans[0]
        if not call.is_trial and self._drafters.estimate(name, plan).gain <= 1:
            return False  # what gained when fewer decoded
        self._begin_spell(name, plan, call.is_trial)
        return True

    def _begin_spell(self, name: str, plan: Plan, is_trial: bool) -> None:
        self._lead = name
        if is_trial:
            # What this session was like is what is tried.
            self._leading.affinity = Affinity()
        # Scouts have seen little of a session: it begins alone, and for a short while.
        is_scout = self._drafters.may_scout(name)
        if not is_scout:
            self._membership.begin(Call(self._leading.drafter_id, plan, is_trial))
        self._spell = Spell(
            plan, self._loss_allowed(is_short=is_trial or is_scout), is_trial=is_trial
        )
        self._experience.trying += is_trial
        self._experience.speculating += 1

    def _loss_allowed(self, *, is_short: bool) -> float:
        """What a session may lose by itself: little, if nobody counts it together with others."""
        if self._membership.is_on:
            return MEMBER_LOSS
        return TRIAL_LOSS if is_short else SPELL_LOSS

    def _end_spell(self, *, lost: bool) -> None:
        if self._spell is not None:
            experience, is_trial = self._experience, self._spell.is_trial
            has_joined = is_trial and self._spell.rounds
            joining_us = JOINING * experience.plain_us if has_joined else 0.0
            gain_us = self._spell.total_us - joining_us
            experience.purse.settle(gain_us, experience.num_sessions)
            experience.trying -= is_trial
            experience.speculating -= 1
            self._membership.leave(lost=lost)
            self._spell = None

    def _takes_plain(self, spell: Spell) -> bool:
        """Whether to measure plain decoding now, all of those who began together at once."""
        if spell.wants_plain:
            self._membership.begin_interlude()
        takes = self._membership.takes_interlude() if self._membership.is_on else spell.wants_plain
        if takes:
            spell.take_plain()
        return takes

    def _consider(self, plain_left: int, remaining: int) -> int:
        """Decide what follows a plain stretch. Returns how much longer, or shorter, it is to be."""
        if not self._experience.costs.knows_plain:
            return _FIRST_STRETCH
        beginning = what_to_begin(
            self._experience, self._drafters, self._pauses_taken, remaining - plain_left
        )
        if beginning is not None:
            self._begin_spell(*beginning)
            lead = _SCOUTS_LEAD if self._drafters.may_scout(beginning.name) else _LEAD
            return min(lead - plain_left, 0)
        scouted = self._scouting.is_on and any(map(self._drafters.may_scout, self._drafters))
        return _SCOUTED_STRETCH if scouted else self._pause()

    def _pause(self) -> int:
        """Return how long to decode plainly before the next trial: longer every time."""
        pause = _PAUSES[min(self._pauses_taken, len(_PAUSES) - 1)]
        self._pauses_taken += 1
        return pause

    def _gives_up(self, spell: Spell) -> bool:
        """Whether to stop speculating; if not, the spell may have another plan now."""
        if spell.has_lost(self._experience.plain_us):
            return True
        if self._membership.is_over:
            return True
        if spell.is_long and spell.is_trial:
            self._pauses_taken, spell.is_trial = 0, False
            spell.loss_allowed = self._loss_allowed(is_short=False)
            self._experience.trying -= 1
            self._membership.succeed()
        return spell.wants_review() and self._review(spell)

    def _review(self, spell: Spell) -> bool:
        """Find a better plan. Returns whether none is any good, and none was."""
        known = [name for name in self._drafters if self._drafters.is_known(name)]
        name, best = self._drafters.best([self._lead, *known])
        current = self._drafters.estimate(self._lead, spell.home)
        if best.gain < 1 and spell.net_us <= 0:
            return True
        # Once: where such trees do not even come in time, nothing is told of them.
        if not spell.has_looked and self._is_worth_knowing(self._drafters.telling):
            spell.look_at(self._drafters.telling)
            return False
        is_other = (name, best.plan) != (self._lead, spell.home)
        if is_other and best.gain > _CLEARLY_BETTER * current.gain:
            self._lead = name
            spell.change(best.plan)
        elif spell.looks_around:
            spell.come_home()
        else:
            # One that may have been unlucky, and two whose costs may have changed unseen.
            hopeful = self._drafters.most_hopeful(self._lead, spell.home)
            spell.look_around((hopeful, self._drafters.telling, self._drafters.plans[0]))
        return False

    def _is_worth_knowing(self, plan: Plan) -> bool:
        """Whether it may pay, and nothing was ever seen of it. Of scouts all is seen."""
        seen = self._drafters.may_scout(self._lead) or self._leading.acceptance.tells_of(plan)
        return not seen and self._drafters.estimate(self._lead, plan).hopeful_gain > 1
