"""How far to speculate: every round of a session, from what rounds cost and what they brought.

Sans-I/O: knows neither tensors nor sockets.

    off, fixed    one answer to all questions: no drafts, or always this plan
    auto          speculate where it surely gains, see auto_policy.py

A session is always in one of two states: it decodes plainly for a number of tokens, of which the
target is told at once, or it takes rounds with a standing plan. Both kinds of policy teach.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from gateway.auto_policy import FOR_GOOD, AutoPolicy
from gateway.experience import Experience
from gateway.lessons import Lessons, Round
from gateway.plans import NO_DRAFTS
from protos.messages import DraftTree, Plan

# The depth of a fixed plan that does not name one.
FIXED_STEPS = 5


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
    def lead(self) -> str:
        """The name to ask for the drafter whose trees are verified; the default has none."""

    @property
    def wants_drafter(self) -> bool:
        """Whether the lead should follow the session now."""

    @property
    def scouts(self) -> Mapping[str, Plan]:
        """The others that should follow now, by name, and what they are to be asked for."""

    def plan(self, plain_left: int) -> Plan:
        """Return what the lead is to be asked for, with so many plain tokens to come."""

    def patience_s(self, longest_s: float) -> float:
        """Return how long a round may wait for a draft, at most `longest_s`."""

    def more_plain(self, plain_left: int, *, drafter_open: bool, remaining: int) -> int:
        """Return how many plain tokens are to follow those that are left; 0 for none.

        Below 0: so many fewer of those that are left, but not all of them. The answer has at most
        `remaining` tokens more.
        """

    def trim(self, tree: DraftTree, remaining: int) -> DraftTree:
        """Return what is worth verifying when at most `remaining` more tokens are wanted."""

    def drafter_opened(self, name: str, drafter_id: str) -> None:
        """The drafter that was asked for by this name follows the session."""

    def scouted(self, name: str, tree: DraftTree) -> None:
        """A scout sent a tree for what is committed now or next."""

    def learn(self, one: Round, tokens: list[int], *, plain: bool) -> None:
        """Take in a round, after which `tokens` are committed; `plain`: of a plain stretch."""

    def end(self) -> None:
        """The session is over."""


class FixedPolicy:
    """Always the same plan; with one that asks for no drafts, all is decoded plainly."""

    scouts: Mapping[str, Plan] = MappingProxyType({})

    def __init__(self, plan: Plan, experience: Experience, drafter_id: str = "") -> None:
        self.lead = drafter_id
        self._plan = plan if plan.draft_tokens > 1 else NO_DRAFTS
        self._lessons = Lessons(experience, drafter_id)
        self._experience = experience
        experience.num_sessions += 1
        experience.speculating += self.wants_drafter

    @property
    def wants_drafter(self) -> bool:
        return self._plan.steps > 0

    def plan(self, plain_left: int) -> Plan:
        del plain_left
        return self._plan

    def patience_s(self, longest_s: float) -> float:
        return longest_s

    def more_plain(self, plain_left: int, *, drafter_open: bool, remaining: int) -> int:
        del drafter_open, remaining
        return 0 if self.wants_drafter or plain_left else FOR_GOOD

    def trim(self, tree: DraftTree, remaining: int) -> DraftTree:
        return tree.trimmed(max(1, min(self._plan.draft_tokens, remaining)))

    def drafter_opened(self, name: str, drafter_id: str) -> None:
        del name
        self._lessons.drafter_id = drafter_id

    def scouted(self, name: str, tree: DraftTree) -> None:
        raise AssertionError(f"nobody sent {name!r} out, which drafted {tree}")

    def learn(self, one: Round, tokens: list[int], *, plain: bool) -> None:
        if plain:
            self._lessons.plain(one, undisturbed=self._experience.all_decode_plainly)
        elif self.wants_drafter:
            self._lessons.round(one, self._plan)
            self._lessons.judge(tokens)

    def end(self) -> None:
        self._lessons.end()
        self._experience.num_sessions -= 1
        self._experience.speculating -= self.wants_drafter


def policy_for(wish: Wish, experience: Experience, drafter_id: str) -> Policy:
    """Return the policy of one session. Whoever takes it must `end` it."""
    if wish.mode == "auto":
        return AutoPolicy(experience, wish.plan, drafter_id)
    return FixedPolicy(wish.plan, experience, drafter_id)
