"""One session's rounds: draft, verify, commit. What to send next, and how long to wait for a draft.

Sans-I/O: takes events and the time, and says what to do, so every loss, delay and reordering is
tested without a socket. A round never waits for a drafter beyond its deadline, and a drafter that
keeps missing it is waited for ever more rarely.

    verdict ──▶ committed ──poll──▶ tree arrived?          verify it
                                    may still come in time? wait until the deadline
                                    otherwise               verify the root alone

Between them lie plain stretches, in which the target goes on by itself and nothing is sent.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from gateway.lessons import Round
from gateway.policy import Policy
from protos.messages import DraftTimings, DraftTree, Plan, Verdict, VerifyTimings

_MAX_ROUNDS_WITHOUT_WAITING = 64
_FIRST_PAUSE_S = 0.05
_MAX_PAUSE_S = 5.0


@dataclass
class Statistics:
    """What speculation did for one request. See SpeculationStats of gateway.proto."""

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    missed: int = 0
    drafter_id: str = ""
    trouble: str = ""
    verify: VerifyTimings = field(default_factory=VerifyTimings)
    draft: DraftTimings = field(default_factory=DraftTimings)
    rounds_by_plan: Counter[Plan] = field(default_factory=Counter)

    @property
    def accept_length(self) -> float:
        """1 + accepted draft tokens / verify rounds; 1 before the first round."""
        return 1 + self.accepted / max(self.rounds, 1)

    def count(self, tree: DraftTree, accepted: int, timings: VerifyTimings, plan: Plan) -> None:
        """Add a round: what was verified, how much of it became text, what had been asked for."""
        self.rounds += 1
        self.rounds_by_plan[plan] += 1
        self.drafted += tree.num_drafts
        self.accepted += accepted
        short = tree.num_drafts - len(self.accepted_by_position)
        self.accepted_by_position.extend([0] * short)
        for position in range(accepted):
            self.accepted_by_position[position] += 1
        self.verify += timings
        self.draft += tree.timings


@dataclass
class Patience:
    """In how many rounds from now a drafter is waited for again. Doubles with every miss."""

    rounds_to_skip: int = 0
    _next_skip: int = 1

    def missed(self) -> None:
        """The drafter let a deadline pass."""
        self.rounds_to_skip = self._next_skip
        self._next_skip = min(2 * self._next_skip, _MAX_ROUNDS_WITHOUT_WAITING)

    def kept(self) -> None:
        """A tree came in time."""
        self.rounds_to_skip, self._next_skip = 0, 1


class Rounds:
    """The rounds of one session, from the prompt's verdict on."""

    def __init__(
        self,
        prompt: list[int],
        policy: Policy,
        *,
        vocab_size: int,
        max_new_tokens: int,
        deadline_s: float,
    ) -> None:
        self.tokens = list(prompt)
        self.statistics = Statistics()
        self._policy = policy
        self._vocab_size = vocab_size
        self._longest = len(prompt) + max_new_tokens
        self._deadline_s = deadline_s
        self._patience = Patience()
        # Names of those that follow.
        self._open: set[str] = set()
        self._pause_s = _FIRST_PAUSE_S
        # The newest tree of each.
        self._arrived: dict[str, DraftTree] = {}
        self._verifying: DraftTree | None = DraftTree.plain(len(prompt), prompt[-1])
        # What came from the drafter for the round under way, and whether it was waited for in vain.
        self._drafted: DraftTree | None = None
        self._waited = False
        # The prompt's verdict has the first token, whatever follows.
        plain = policy.more_plain(0, drafter_open=True, remaining=max_new_tokens)
        self.run_until = min(len(prompt) + 1 + plain, self._longest) if plain else 0
        """The target decodes plainly, without being asked, until so many tokens are committed."""
        self._ran_from = 0
        self.committed_at = 0.0

    @property
    def committed_len(self) -> int:
        return len(self.tokens)

    @property
    def runs_on(self) -> bool:
        """Whether the next verdict comes without another word."""
        return self.committed_len < self.run_until

    @property
    def drafters(self) -> dict[str, Plan]:
        """Who should follow the session now, by name, and what they are to be asked for."""
        lead = {self._policy.lead: self.plan} if self._policy.wants_drafter else {}
        return {**self._policy.scouts, **lead}

    @property
    def plan(self) -> Plan:
        """What the lead is to be asked for now."""
        return self._policy.plan(max(self.run_until - self.committed_len, 0))

    @property
    def deadline(self) -> float:
        """When to stop waiting for a draft, on the clock of the events' `now`."""
        return self.committed_at + self._policy.patience_s(self._deadline_s)

    def on_verdict(self, verdict: Verdict, now: float) -> DraftTree:
        """Commit a verdict's tokens. Returns the tree it was about.

        Raises ValueError for a verdict about another state or another tree than ours.
        """
        tree = self._verifying
        if tree is None or verdict.committed_len != self.committed_len:
            raise ValueError(
                f"a verdict for committed_len {verdict.committed_len} came at {self.committed_len}"
            )
        if len(verdict.path) > tree.num_drafts:
            raise ValueError(
                f"a verdict accepts {len(verdict.path)} nodes of a tree with {tree.num_drafts}"
            )
        ran, self._verifying = self.runs_on, None
        self.tokens.extend(verdict.tokens)
        self._learn(verdict, tree, now, ran=ran)
        self.committed_at = now
        if self.runs_on:
            self._verifying = DraftTree.plain(self.committed_len, self.tokens[-1])
        return tree

    def _learn(self, verdict: Verdict, tree: DraftTree, now: float, *, ran: bool) -> None:
        """Tell the policy of a round. The prompt's is none, nor is the first step of a stretch."""
        plain = ran and verdict.committed_len > self._ran_from
        if self.committed_at and (plain or not ran):
            took_us = (now - self.committed_at) * 1e6
            one = Round(
                took_us, len(verdict.tokens), tree, verdict.timings, self._drafted, self._waited
            )
            self._policy.learn(one, self.tokens, plain=plain)
        self._drafted, self._waited = None, False

    def decide(self) -> int | None:
        """Let the policy decide what follows a verdict.

        Returns the length until which the target is to decode plainly, if it must be told.
        """
        left = max(self.run_until - self.committed_len, 0)
        more = self._policy.more_plain(
            left,
            drafter_open=self._lead_is_open,
            remaining=self._longest - self.committed_len,
        )
        assert more >= 0 or left + more > 0, "what is under way is not taken back"
        until = min(self.committed_len + left + more, self._longest)
        if not more or until == self.run_until or until <= self.committed_len:
            return None
        if not left:
            self._ran_from = self.committed_len
            self._verifying = DraftTree.plain(self.committed_len, self.tokens[-1])
        self.run_until = until
        return until

    def poll(self, now: float, remaining: int) -> DraftTree | None:
        """Return the tree to verify now, or None to wait for a draft until the deadline.

        `remaining` is how many more tokens the session may produce.
        """
        assert self._verifying is None, "one tree at a time"
        arrived = self._take_arrived()
        if arrived is not None:
            self._patience.kept()
            self._pause_s = _FIRST_PAUSE_S
            self._drafted = arrived
            return self._send(self._policy.trim(arrived, remaining))
        # The last token of an answer comes from the root: there a draft is of no use.
        if self.plan.steps and remaining > 1:
            if self._worth_waiting() and now < self.deadline:
                return None
            self._miss()
        return self._send(DraftTree.plain(self.committed_len, self.tokens[-1]))

    def on_tree(self, name: str, tree: DraftTree) -> None:
        """Keep a tree for this state or the next: a draft may overtake its verdict. Drop others.

        What a scout drafts is only compared with the text, so it is never too late.
        """
        if name in self._policy.scouts:
            self._policy.scouted(name, tree)
        if tree.committed_len >= self.committed_len + (self._verifying is not None):
            self._arrived[name] = tree

    def on_drafter_open(self, name: str, drafter_id: str) -> None:
        """The drafter that was asked for by this name follows the session from now on."""
        self._policy.drafter_opened(name, drafter_id)
        self._open.add(name)
        if name == self._policy.lead:
            self.statistics.drafter_id = drafter_id

    def on_drafter_lost(self, name: str, reason: str) -> float:
        """That drafter follows no more. Returns seconds to pause before another try.

        They double until a draft is used: a drafter may open and be lost again for ever.
        """
        self.on_drafter_left(name)
        if name == self._policy.lead:
            self.statistics.trouble = reason
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _MAX_PAUSE_S)
        return pause_s

    def on_drafter_left(self, name: str) -> None:
        """A drafter was sent away: it is not waited for, and nothing is wrong."""
        self._open.discard(name)
        self._arrived.pop(name, None)

    @property
    def _lead_is_open(self) -> bool:
        return self._policy.lead in self._open

    def _take_arrived(self) -> DraftTree | None:
        """Return the lead's draft for the current state, if an honest one may have sent it."""
        tree = self._arrived.pop(self._policy.lead, None)
        if tree is None or tree.committed_len != self.committed_len or not self.plan.steps:
            return None
        if tree.tokens[0] != self.tokens[-1] or max(tree.tokens) >= self._vocab_size:
            self.statistics.trouble = (
                f"a draft from token {tree.tokens[0]} with ids up to {max(tree.tokens)} came, "
                f"expected one from token {self.tokens[-1]} with ids below {self._vocab_size}"
            )
            return None
        return tree

    def _worth_waiting(self) -> bool:
        return self._lead_is_open and not self._patience.rounds_to_skip

    def _miss(self) -> None:
        self.statistics.missed += 1
        if self._patience.rounds_to_skip:
            self._patience.rounds_to_skip -= 1
        elif self._lead_is_open:
            waited_s = self._policy.patience_s(self._deadline_s)
            self.statistics.trouble = f"no draft within {waited_s * 1000:.0f} ms"
            self._waited = True
            self._patience.missed()
        elif not self.statistics.trouble:
            self.statistics.trouble = "no drafter follows the session yet"

    def _send(self, tree: DraftTree) -> DraftTree:
        self._verifying = tree
        return tree
