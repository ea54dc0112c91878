"""A candidate that drafts beside the default drafter, unsent. Sans-I/O; for the event loop only."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from draft_service.registry import Registered, falls_within
from draft_service.trial import PromotionRule, Trial

# Taps that all of a shadow's sessions together may leave waiting, in bytes.
MAX_HELD_BYTES = 128 * 2**20


class Member(Protocol):
    """One session that the shadow follows."""

    def close(self) -> None:
        """Follow it no further."""


class Shadow:
    """Which sessions the candidate follows, and how it compares."""

    def __init__(
        self,
        candidate: Registered,
        incumbent_id: str,
        share: float,
        rule: PromotionRule | None,
    ) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"share must be in (0, 1], got {share}")
        self.candidate = candidate
        self.incumbent_id = incumbent_id
        self.share = share
        self.rule = rule
        self.trial = Trial(rule)
        self.running = True
        self.outcome = self.trial.verdict.value
        self.dropped = 0
        """Sessions that it could not keep up with, or had no memory for."""
        self.held_bytes = 0
        self.members: set[Member] = set()

    def follows(self, session_id: str, drafter_id: str) -> bool:
        """Whether it follows a session that this drafter serves."""
        return (
            self.running
            and drafter_id == self.incumbent_id
            and falls_within(self.share, "shadow", session_id)
        )

    @property
    def may_hold_kv(self) -> bool:
        """Whether its KV cache has room: sessions that the candidate serves come first."""
        used, total = self.candidate.loaded.kv_usage
        return not self.candidate.outboxes or 2 * used <= total

    def end(self, outcome: str) -> None:
        """Follow nobody any more."""
        self.running, self.outcome = False, outcome
        for member in list(self.members):
            member.close()


class HeldFrames:
    """The frames of one session that the shadow has not taken in, out of the budget of all."""

    def __init__(self, shadow: Shadow) -> None:
        self._shadow = shadow
        self._sizes: deque[int] = deque()

    def hold(self, num_bytes: int) -> bool:
        """Return whether there is room for one more frame; it is held then."""
        if self._shadow.held_bytes + num_bytes > MAX_HELD_BYTES:
            return False
        self._sizes.append(num_bytes)
        self._shadow.held_bytes += num_bytes
        return True

    async def acquire(self) -> None:
        """Nobody waits for room: `hold` asked for it."""

    def release(self) -> None:
        """The oldest frame is taken in."""
        if self._sizes:
            self._shadow.held_bytes -= self._sizes.popleft()

    def clear(self) -> None:
        """No frame is of interest any more."""
        while self._sizes:
            self.release()
