"""Notices a drafter whose drafts are never right. Sans-I/O.

Even a poor drafter is right now and then, at least with the first token of its drafts. One that
never is was wired wrongly; without an alarm it would be served at accept length 1.0 for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from draft_service.scoring import Scored

ROUNDS = 50
LEAST_SHARE = 0.02


class Alarm:
    """The last rounds in which a drafter drafted anything."""

    def __init__(self) -> None:
        self._rounds: deque[Scored] = deque(maxlen=ROUNDS)
        self._right = 0

    @property
    def rounds(self) -> Sequence[Scored]:
        """Return the evidence, oldest first."""
        return tuple(self._rounds)

    @property
    def is_raised(self) -> bool:
        """Whether fewer than LEAST_SHARE of the last ROUNDS first drafts were right."""
        return len(self._rounds) == ROUNDS and self._right < LEAST_SHARE * ROUNDS

    def count(self, scored: Scored) -> None:
        """Count a round; one without a draft says nothing."""
        if not scored.guesses:
            return
        if len(self._rounds) == ROUNDS:
            self._right -= bool(self._rounds[0].accepted)
        self._rounds.append(scored)
        self._right += bool(scored.accepted)
