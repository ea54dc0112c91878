"""How much time speculation may still lose. Sans-I/O; microseconds.

A small share of all decoding time is put in, up to a limit; what a round took longer than its
tokens would have taken plainly is taken out, and a round that gained puts its gain in. So over any
stretch of time the loss is at most that share of it and the limit, however wrong the estimates are.
"""

from __future__ import annotations

from dataclasses import dataclass

# Over 30 s of one session: 0.3 s and 0.2 s, together less than 2 %.
_SHARE = 0.01
_LIMIT_US = 200_000.0
# Less than this is not worth beginning a trial with.
_TRIAL_US = 30_000.0


@dataclass
class Purse:
    """What may be lost. It begins half full."""

    left_us: float = _LIMIT_US / 2

    def pass_time(self, elapsed_us: float) -> None:
        """A session decoded for so long."""
        self._put(_SHARE * elapsed_us)

    def settle(self, gain_us: float) -> None:
        """A round gained so much against plain decoding, or lost it."""
        self._put(gain_us)

    def _put(self, amount_us: float) -> None:
        self.left_us = min(self.left_us + amount_us, _LIMIT_US)

    @property
    def is_empty(self) -> bool:
        return self.left_us <= 0

    @property
    def affords_trial(self) -> bool:
        return self.left_us >= _TRIAL_US
