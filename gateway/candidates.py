"""The drafters that may lead one session: what is known of each, and which of them is best.

Sans-I/O. By the names that drafters are asked for; the service's default has none. Those that take
next to no time are scouts: their drafts are compared with the text, and never verified. What prompt
lookup would draft we know ourselves, without a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gateway.affinity import Factor
from gateway.experience import Estimate, Experience
from gateway.lessons import Lessons
from gateway.plans import CHAINS, EXPLORING, EXPLORING_TOGETHER, within
from kernels.prompt_lookup import PromptLookup
from protos.messages import DraftTree, Plan

# What scouts draft.
SCOUTING = CHAINS[-1]
_PROMPT_LOOKUP = "ngram"
# Of a plain step.
_CHEAP = 0.05
# Rounds after which a drafter is known, drafts of a scout after which it is known what a session is
# like for it, and how many of them must have been right lately.
_KNOWN_AFTER = 24
_SEEN_AFTER = 5
_RIGHT_AFTER = 1.5
# Of the plan that a spell begins with.
_FIRST_DRAFT_TOKENS = 3
# Standard errors of the acceptance that are taken off to be sure.
_CAUTION = 1.0


class Candidates:
    """Of one session. `limits` are the largest plan that may be used."""

    def __init__(self, experience: Experience, limits: Plan, drafter_id: str) -> None:
        self._experience = experience
        self.plans = within(limits)
        names = (drafter_id,) if drafter_id else ("", *experience.rivals)
        self._lessons = {
            name: Lessons(experience, name or experience.default_drafter) for name in names
        }
        self._lookup = PromptLookup()

    def __iter__(self) -> Iterator[str]:
        return iter(self._lessons)

    def __contains__(self, name: str) -> bool:
        return name in self._lessons

    def __getitem__(self, name: str) -> Lessons:
        return self._lessons[name]

    @property
    def telling(self) -> Plan:
        """The plan that tells most of a drafter, within the limits."""
        wanted = EXPLORING_TOGETHER if self._experience.is_busy else EXPLORING
        return wanted if wanted in self.plans else self.plans[-1]

    def name_of(self, drafter_id: str) -> str | None:
        """Return the name to ask for that drafter, if it may lead this session."""
        return next((n for n, one in self._lessons.items() if one.drafter_id == drafter_id), None)

    def best(self, names: Iterable[str]) -> tuple[str, Estimate]:
        """Return the best plan of these drafters, and the name of the one to ask for it."""
        all_of_them = [(name, self.estimate(name, plan)) for name in names for plan in self.plans]
        return max(all_of_them, key=lambda one: one[1].gain)

    def surest(self, names: Iterable[str]) -> tuple[str, Estimate]:
        """Return what is best to begin with, and the name of the one to ask for it.

        A small plan, for a session that will not gain is known as soon and loses less; but what
        scouts bring is known.
        """
        all_of_them = [
            (name, self.estimate(name, plan))
            for name in names
            for plan in self.plans
            if plan.draft_tokens <= _FIRST_DRAFT_TOKENS or self.may_scout(name)
        ]
        return max(all_of_them, key=lambda one: one[1].sure_gain)

    def most_hopeful(self, name: str, but: Plan) -> Plan:
        """Return the plan of a drafter, but for one, that may be best if it has been unlucky."""
        others = [plan for plan in self.plans if plan != but] or [but]
        return max(others, key=lambda plan: self.estimate(name, plan).hopeful_gain)

    def estimate(self, name: str, plan: Plan) -> Estimate:
        """Return what a plan of this drafter would bring in this session.

        A scout leads without a trial: it must be sure of the session, too.
        """
        lessons = self._lessons[name]
        factor = lessons.factor if self.may_scout(name) else Factor(lessons.factor.mean)
        return self._experience.estimate(lessons.drafter_id, plan, factor, _CAUTION)

    def was_tried(self, name: str) -> bool:
        """Whether it is known how good a drafter is and what it costs."""
        return self._lessons[name].acceptance.rounds >= _KNOWN_AFTER

    def is_known(self, name: str) -> bool:
        """Whether a spell may begin with a drafter; scouts must have seen this session's text.

        Sessions differ most in how much they copy: what others did says little of this one.
        """
        lessons = self._lessons[name]
        seen = lessons.num_judged >= _SEEN_AFTER and lessons.affinity.rounds_right > _RIGHT_AFTER
        return self.was_tried(name) and (seen or not self.may_scout(name))

    def may_scout(self, name: str) -> bool:
        """Whether it is known what a drafter would bring without its leading."""
        measured = self._lessons[name].acceptance.rounds > 0
        return self._is_local(name) or (measured and self._is_cheap(name))

    def remote_scouts(self, lead: str, *, leads: bool) -> list[str]:
        """Return those to be sent out; others than the lead once, to learn whether they are cheap.

        `leads`: the lead drafts already.
        """
        return [
            name
            for name in self._lessons
            if not self._is_local(name)
            and (name != lead or (not leads and self._lessons[name].acceptance.rounds > 0))
            and self._is_cheap(name)
        ]

    def scout_here(self, tokens: list[int]) -> None:
        """Scout after these tokens, where that takes no message."""
        local = [name for name in self._lessons if self._is_local(name)]
        if local:
            copied = self._lookup.copied(tokens, SCOUTING.steps)
            tree = DraftTree.chain(
                len(tokens), (tokens[-1], *copied.tokens), logprobs=(0.0, *copied.logprobs)
            )
            for name in local:
                self._lessons[name].scouted(tree, SCOUTING)

    def judge(self, tokens: list[int]) -> None:
        """Judge all drafts that the committed tokens tell enough about."""
        for lessons in self._lessons.values():
            lessons.judge(tokens)

    def end(self) -> None:
        """The session is over."""
        for lessons in self._lessons.values():
            lessons.end()

    def _is_local(self, name: str) -> bool:
        return self._experience.kinds.get(self._lessons[name].drafter_id) == _PROMPT_LOOKUP

    def _is_cheap(self, name: str) -> bool:
        """Whether a drafter takes next to no time: it may share the target's machine."""
        draft_us = self._experience.costs.draft[self._lessons[name].drafter_id].of(SCOUTING)
        return draft_us <= _CHEAP * self._experience.plain_us
