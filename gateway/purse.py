"""How much time speculation may still lose. Sans-I/O; microseconds of each session.

A small share of all decoding time is put in, and what spells of rounds gained against plain
decoding; what they lost is taken out. There is a limit to what it holds. So what spells lose over
any stretch of time, less what they gain in it, is at most that share of it, the limit and one spell
a session, however wrong the estimates of drafts are. It does not bound what is no spell's: our own
time, a drafter that joins.
"""

from __future__ import annotations

from dataclasses import dataclass

# Over 30 s of one session: 0.15 s and 0.2 s, together 1.2 %.
_SHARE = 0.005
_LIMIT_US = 200_000.0
# Less than this is not worth beginning a trial with.
_TRIAL_US = 20_000.0


@dataclass
class Purse:
    """What may be lost. It begins half full."""

    left_us: float = _LIMIT_US / 2

    def pass_time(self, elapsed_us: float, num_sessions: int) -> None:
        """One of so many sessions decoded for so long."""
        self.left_us = min(self.left_us + _SHARE * elapsed_us / num_sessions, _LIMIT_US)

    def settle(self, gain_us: float, num_sessions: int) -> None:
        """A spell of one of them ended that gained so much against plain decoding, or lost it."""
        self.left_us = min(self.left_us + gain_us / num_sessions, _LIMIT_US)

    def affords_spell(self, *, clear: bool) -> bool:
        """Whether a gain that should be sure may be tried; a `clear` one may overdraw it some."""
        return self.left_us > (-_LIMIT_US / 2 if clear else 0.0)

    @property
    def affords_trial(self) -> bool:
        return self.left_us >= _TRIAL_US
