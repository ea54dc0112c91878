"""The gateway's half of a simulated session: the real rounds, told of events as they arrive.

Mirrors the loop of `gateway.session`: after every verdict the policy decides, a drafter follows or
goes, and the target is told what comes next, unless it runs on by itself.
"""

from __future__ import annotations

from typing import Protocol

from benchmarks.simulation.clock import Clock
from benchmarks.simulation.guesses import VOCABULARY, said_at
from gateway.policy import Policy
from gateway.round import Rounds
from protos.messages import DraftTree, Plan, Verdict

ENDLESS = 2**40
PROMPT_LEN = 64


class Upstream(Protocol):
    """A session's way to target and drafter."""

    def verify(self, tree: DraftTree) -> None:
        """Send the target a tree."""

    def run(self, until_len: int) -> None:
        """Let the target decode plainly until so many tokens are committed."""

    def ask(self, name: str, plan: Plan) -> None:
        """Have the drafter of this name follow the session with this standing plan."""

    def leave(self, name: str) -> None:
        """Send that drafter away."""


class Session:
    """One endless answer."""

    def __init__(self, clock: Clock, policy: Policy, upstream: Upstream, deadline_s: float) -> None:
        self.rounds = Rounds(
            [said_at(position) for position in range(PROMPT_LEN)],
            policy,
            vocab_size=VOCABULARY,
            max_new_tokens=ENDLESS,
            deadline_s=deadline_s,
        )
        self._clock, self._upstream = clock, upstream
        # Names of drafters.
        self._asked: set[str] = set()
        self._waits = False
        self._follow_policy()

    def on_verdict(self, verdict: Verdict) -> None:
        """Commit, let the policy decide, and go on to the next round."""
        plan, is_round = self.rounds.plan, self.rounds.committed_len > PROMPT_LEN
        tree = self.rounds.on_verdict(verdict, self._clock.now)
        if is_round:
            self.rounds.statistics.count(tree, len(verdict.path), verdict.timings, plan)
        until_len = self.rounds.decide()
        self._follow_policy()
        if until_len is not None:
            self._upstream.run(until_len)
        elif not self.rounds.runs_on:
            self._next_tree()

    def on_drafter_open(self, name: str, drafter_id: str) -> None:
        """The drafter of this name follows the session from now on."""
        if name in self._asked:
            self.rounds.on_drafter_open(name, drafter_id)

    def on_tree(self, name: str, tree: DraftTree) -> None:
        """Keep a draft, and verify it if it was waited for."""
        if name in self._asked:
            self.rounds.on_tree(name, tree)
        if self._waits:
            self._next_tree()

    def _follow_policy(self) -> None:
        wanted = self.rounds.drafters
        for name in self._asked - wanted.keys():
            self._upstream.leave(name)
            self.rounds.on_drafter_left(name)
        for name, plan in wanted.items():
            self._upstream.ask(name, plan)
        self._asked = set(wanted)

    def _next_tree(self) -> None:
        tree = self.rounds.poll(self._clock.now, ENDLESS)
        self._waits = tree is None
        if tree is None:
            self._clock.at(self.rounds.deadline, self._on_deadline)
        else:
            self._upstream.verify(tree)

    def _on_deadline(self) -> None:
        if self._waits and self._clock.now >= self.rounds.deadline:
            self._next_tree()
