"""What a drafter has achieved, over all rounds that it drafted in. Sans-I/O."""

from __future__ import annotations

from dataclasses import dataclass, field

from draft_service.clustered_ratio import ClusteredRatio, Interval
from draft_service.scoring import Scored


@dataclass
class Scorecard:
    """Counts, and the accept length with how sure it is."""

    rounds: int = 0
    drafted_rounds: int = 0
    accepted: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    """Rounds in which the draft at depth i + 1 was right."""
    _lengths: ClusteredRatio = field(default_factory=ClusteredRatio)

    @property
    def accept_length(self) -> float:
        """1 + accepted / rounds; 1 before the first round."""
        return 1 + self.accepted / max(self.rounds, 1)

    @property
    def variance(self) -> float:
        """The variance of the accept length as an estimate, from the spread between sessions."""
        return self._lengths.variance

    @property
    def num_sessions(self) -> int:
        """How many sessions it was scored in."""
        return self._lengths.num_sessions

    def count(self, session_id: str, scored: Scored) -> None:
        """Count a round."""
        self.rounds += 1
        self.drafted_rounds += bool(scored.guesses)
        self.accepted += scored.accepted
        missing = scored.accepted - len(self.accepted_by_position)
        self.accepted_by_position.extend([0] * missing)
        for position in range(scored.accepted):
            self.accepted_by_position[position] += 1
        self._lengths.add(session_id, scored.accept_length)

    def end(self, session_id: str) -> None:
        """No more rounds of this session will come."""
        self._lengths.end(session_id)

    def interval(self, confidence: float = 0.95) -> Interval:
        """Return where the accept length lies with some confidence."""
        return self._lengths.interval(confidence)
