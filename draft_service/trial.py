"""A candidate against the default drafter, on the same rounds. Sans-I/O.

What is estimated is the relative gain in accept length, a ratio of two sums over the rounds that
both drafted: pairing takes the texts' difficulty out, clustering by session keeps it honest.
Whoever looks after every round sees a wrong winner sooner or later. So the rule looks a few times
only, when the rounds have doubled, and divides the doubt that it may have by the number of looks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from draft_service.clustered_ratio import ClusteredRatio
from draft_service.scoring import Scored

_FIRST_LOOK = 200
# With fewer, the spread between them is not known well enough.
_LEAST_SESSIONS = 8
DEFAULT_CONFIDENCE = 0.95
DEFAULT_MAX_ROUNDS = 20_000


class Verdict(Enum):
    """What a trial has shown."""

    OPEN = "undecided yet"
    BETTER = "better"
    NOT_BETTER = "not better"
    UNDECIDED = "not shown to be better"


@dataclass(frozen=True)
class PromotionRule:
    """Promote a candidate whose relative gain is above `better_by`, with confidence."""

    better_by: float
    confidence: float = DEFAULT_CONFIDENCE
    max_rounds: int = DEFAULT_MAX_ROUNDS

    def __post_init__(self) -> None:
        if not 0 <= self.better_by <= 10:
            raise ValueError(f"promote_if.better_by must be in [0, 10], got {self.better_by}")
        if not 0.5 < self.confidence < 1:
            raise ValueError(f"promote_if.confidence must be in (0.5, 1), got {self.confidence}")
        if self.max_rounds < 1:
            raise ValueError(f"promote_if.max_rounds must be at least 1, got {self.max_rounds}")

    @property
    def num_looks(self) -> int:
        """How often it looks: after 200 rounds, 400, ... and after the last."""
        return 1 + math.ceil(max(0.0, math.log2(self.max_rounds / _FIRST_LOOK)))

    @property
    def confidence_of_a_look(self) -> float:
        """All looks together are wrong no more often than 1 - confidence. (Bonferroni.)"""
        return 1 - (1 - self.confidence) / self.num_looks


class Trial:
    """The rounds that candidate and incumbent both drafted."""

    def __init__(self, rule: PromotionRule | None) -> None:
        """Without a rule it stays open."""
        self.candidate = ClusteredRatio()
        self.incumbent = ClusteredRatio()
        """The accept lengths of both, on the same rounds."""
        self.verdict = Verdict.OPEN
        self._rule = rule
        self._ratio = ClusteredRatio()
        self._next_look = min(_FIRST_LOOK, rule.max_rounds) if rule else 0
        # A session's rounds of one side only: accept length by committed_len.
        self._unpaired: dict[str, tuple[dict[int, int], dict[int, int]]] = {}

    @property
    def rounds(self) -> int:
        return int(self.incumbent.denominator)

    @property
    def gain(self) -> float:
        """The candidate's accept length over the incumbent's, less 1."""
        return self._ratio.value - 1 if self.rounds else 0.0

    def gain_interval(self, confidence: float = DEFAULT_CONFIDENCE) -> tuple[float, float]:
        """Return where the gain lies with some confidence."""
        low, high = self._ratio.interval(confidence)
        return low - 1, high - 1

    def begin(self, session_id: str) -> None:
        """Both sides follow this session from now on."""
        self._unpaired[session_id] = ({}, {})

    def end(self, session_id: str) -> None:
        """No more rounds of this session will come."""
        self._unpaired.pop(session_id, None)
        for ratio in (self.candidate, self.incumbent, self._ratio):
            ratio.end(session_id)

    def count(self, session_id: str, scored: Scored, *, of_candidate: bool) -> None:
        """Take in a round of one side. Sessions that the other does not follow do not count."""
        unpaired = self._unpaired.get(session_id)
        if unpaired is None:
            return
        ours, theirs = unpaired if of_candidate else reversed(unpaired)
        other = theirs.get(scored.committed_len)
        if other is None:
            ours[scored.committed_len] = scored.accept_length
            return
        lengths = (scored.accept_length, other)
        self._count_pair(session_id, *(lengths if of_candidate else reversed(lengths)))
        _drop_up_to(scored.committed_len, ours, theirs)

    def _count_pair(self, session_id: str, candidate: int, incumbent: int) -> None:
        self.candidate.add(session_id, candidate)
        self.incumbent.add(session_id, incumbent)
        self._ratio.add(session_id, candidate, incumbent)
        if self._rule and self.verdict is Verdict.OPEN:
            self._look(self._rule)

    def _look(self, rule: PromotionRule) -> None:
        if self.rounds < self._next_look or self._ratio.num_sessions < _LEAST_SESSIONS:
            return
        is_last = self.rounds >= rule.max_rounds
        self._next_look = min(2 * self._next_look, rule.max_rounds)
        low, high = self.gain_interval(rule.confidence_of_a_look)
        if low > rule.better_by:
            self.verdict = Verdict.BETTER
        elif high < rule.better_by:
            self.verdict = Verdict.NOT_BETTER
        elif is_last:
            self.verdict = Verdict.UNDECIDED


def _drop_up_to(committed_len: int, *sides: dict[int, int]) -> None:
    """Forget rounds that will not be paired: each side's come in order."""
    for rounds in sides:
        for at in [at for at in rounds if at <= committed_len]:
            del rounds[at]
