"""Notices a drafter whose drafts are never right. Sans-I/O.

Even a poor drafter is right now and then, at least with the first token of its drafts. One that
never is was wired wrongly; without an alarm it would be served at accept length 1.0 for ever. One
that was right before is given more rounds: a text in a language that it never saw is no mistake.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from draft_service.scoring import Scored

ROUNDS = 50
ROUNDS_OF_THE_PROVEN = 500
# A drafter that reads garbage is right now and then, with the commonest of tokens.
LEAST_SHARE = 0.05
_PROVEN_SHARE = 0.1


class Alarm:
    """The last rounds in which a drafter drafted anything."""

    def __init__(self) -> None:
        self._few = _Window(ROUNDS)
        self._many = _Window(ROUNDS_OF_THE_PROVEN)
        self._proven = False
        self._evidence: deque[Scored] = deque(maxlen=ROUNDS)

    @property
    def evidence(self) -> Sequence[Scored]:
        """Return the last rounds, oldest first."""
        return tuple(self._evidence)

    @property
    def num_rounds(self) -> int:
        """Over how many rounds it is judged."""
        return self._window.size

    @property
    def is_raised(self) -> bool:
        """Whether fewer than LEAST_SHARE of so many first drafts were right."""
        return self._window.is_full and self._window.share_right < LEAST_SHARE

    @property
    def _window(self) -> _Window:
        return self._many if self._proven else self._few

    def count(self, scored: Scored) -> None:
        """Count a round; one without a draft says nothing."""
        if not scored.guesses:
            return
        self._evidence.append(scored)
        for window in (self._few, self._many):
            window.add(right=scored.accepted > 0)
        self._proven |= self._few.is_full and self._few.share_right >= _PROVEN_SHARE


class _Window:
    """Which of the last rounds were right."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._rounds: deque[bool] = deque(maxlen=size)
        self._right = 0

    @property
    def is_full(self) -> bool:
        return len(self._rounds) == self.size

    @property
    def share_right(self) -> float:
        return self._right / self.size

    def add(self, *, right: bool) -> None:
        """Add a round; the oldest goes if it is full."""
        self._right += right - (self._rounds[0] if self.is_full else 0)
        self._rounds.append(right)
