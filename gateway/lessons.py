"""What one session's rounds teach all sessions, and how the session differs from them.

Sans-I/O. A draft is judged as soon as the text tells how far it was right: that may be a round
later than its verdict, because what is cut from a tree is judged too. How a session differs is seen
earlier: what was right so far counts at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.acceptance import Acceptance
from gateway.affinity import Affinity, Factor
from gateway.experience import Experience
from gateway.plans import num_right, walk
from protos.messages import DraftTree, Plan, VerifyTimings

# Drafts that wait for the text to tell: a dishonest drafter may send any number.
_MOST_OPEN = 32


@dataclass(frozen=True)
class Round:
    """One verdict, and what led to it."""

    took_us: float
    """From the verdict before."""
    num_tokens: int
    verified: DraftTree
    verify: VerifyTimings
    drafted: DraftTree | None = None
    """The whole tree that came from the drafter, if one did."""
    waited: bool = False
    """For a draft that did not come in time."""


@dataclass
class _Open:
    """A draft that is not judged yet."""

    plan: Plan
    drafter_id: str
    drafted: DraftTree
    num_verified: int
    """Nodes; all of a scout's, as if they had been."""
    right: int = 0
    """Guesses that were right so far."""


class Lessons:
    """One session's with one drafter."""

    def __init__(self, experience: Experience, drafter_id: str) -> None:
        self._experience = experience
        self.drafter_id = drafter_id
        self.affinity = Affinity()
        self.num_judged = 0
        """Drafts of this session."""
        self._open: list[_Open] = []

    @property
    def acceptance(self) -> Acceptance:
        """What is known of the drafter."""
        return self._experience.acceptance[self.drafter_id]

    @property
    def factor(self) -> Factor:
        """Return how much better the drafter does in this session than in all of them."""
        so_far = replace(self.affinity)
        for one in self._open:
            if one.right:
                so_far.add(one.right, self.acceptance.expected(one.plan)[0])
        return so_far.factor(self.acceptance.diversity)

    def plain(self, one: Round, *, undisturbed: bool) -> None:
        """Take in a step of a plain stretch that was not its first.

        What it takes beside those who draft is their doing.
        """
        experience = self._experience
        if undisturbed or not experience.costs.knows_plain:
            experience.costs.add_plain(one.took_us, one.verify)
        else:
            experience.gain_together(one.num_tokens * experience.plain_us - one.took_us)

    def round(self, one: Round, plan: Plan | None) -> float:
        """Take in a round; return its gain in microseconds over plain decoding.

        `plan` is what the drafter had been asked for; None if that changed too short a while ago.
        """
        experience = self._experience
        gain_us = one.num_tokens * experience.plain_us - one.took_us
        if one.waited:
            experience.costs.add_miss(self.drafter_id, one.took_us, one.verify)
            if plan is not None:
                self.acceptance.add_none(plan)
                self.affinity.begin(right=False)
                self._compare(plan, 0)
        elif one.drafted is not None and plan is not None:
            timings = (one.verify, one.drafted.timings)
            num_rows = len(one.verified.tokens)
            experience.costs.add_round(plan, self.drafter_id, num_rows, one.took_us, timings)
            self._open.append(_Open(plan, self.drafter_id, one.drafted, num_rows))
        return gain_us

    def scouted(self, tree: DraftTree, plan: Plan) -> None:
        """Take in a tree that nobody will verify."""
        self._experience.costs.draft[self.drafter_id].add(plan, tree.timings)
        self._open.append(_Open(plan, self.drafter_id, tree, len(tree.tokens)))
        del self._open[:-_MOST_OPEN]

    def judge(self, tokens: Sequence[int]) -> None:
        """Judge the drafts that the committed tokens tell enough about."""
        still_open = []
        for one in self._open:
            seen = walk(one.drafted, tokens)
            before, one.right = one.right, num_right(seen.places, one.plan)
            if not before and (one.right or seen.decided):
                self.num_judged += 1
                self.affinity.begin(right=one.right > 0)
            if not seen.decided:
                still_open.append(one)
                continue
            verified_right = sum(place.node < one.num_verified for place in seen.places)
            self._compare(one.plan, one.right)
            self._experience.acceptance[one.drafter_id].add(one.plan, one.drafted, seen)
            self._experience.kept(one.drafter_id, one.plan).add(
                one.num_verified, one.right, verified_right
            )
        self._open = still_open

    def end(self) -> None:
        """The session is over: how it differed from the others is known."""
        if self.affinity.total_rounds:
            self.acceptance.diversity.add(self.affinity)

    def _compare(self, plan: Plan, right: int) -> None:
        expected, _ = self.acceptance.expected(plan)
        self.affinity.add(right, expected)
