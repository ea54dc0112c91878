"""Spells that sessions begin together. Sans-I/O.

Where some sessions of a target take rounds and others decode plainly, neither do well: who drafts
misses steps that nobody holds back for one, and who does not pays for the rows of others. What
speculation brings to all shows only where all speculate. So a session that begins calls the others,
and those in a plain stretch join. What it gains or loses is counted for all sessions together, also
those that go on plainly beside it: that tells more than the luck of one. When it has lost too much,
or most who took part have left it as losers, it is over; then all decode plainly for a while,
longer after every call that failed.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.spell import MOST_GAIN, SPELL_LOSS, TRIAL_LOSS
from protos.messages import Plan

# Plain tokens of each session after one failed call after another.
_PAUSES = (32, 64, 128, 256)


@dataclass(eq=False)
class Call:
    """To draft with this drafter, and this plan at first."""

    drafter_id: str
    plan: Plan
    is_trial: bool
    members: int = 0
    lost: int = 0
    """Who took part and lost by it."""
    net_us: float = 0.0
    """Gained against plain decoding by all sessions on average; no more than a few steps."""

    def has_lost(self, plain_us: float) -> bool:
        """Whether it lost all that it may."""
        return self.net_us < -(TRIAL_LOSS if self.is_trial else SPELL_LOSS) * plain_us


class Calls:
    """Those of one gateway: at most one is open."""

    def __init__(self) -> None:
        self.open: Call | None = None
        self.interludes = 0
        """Times at which all were to decode a few tokens plainly, to know what that takes."""
        self.failures = 0
        """Calls in a row that were over because they lost."""
        self._tokens_since = 0.0

    def leave(self, call: Call, *, lost: bool) -> None:
        """A session takes part no more: it has ended, or it `lost` by it."""
        call.members -= 1
        call.lost += lost
        if call is not self.open:
            return
        if call.lost > call.members:
            self._fail()
        elif not call.members:
            self.open = None
            if call.net_us > 0:
                self.failures = 0

    def gain(self, gain_us: float, plain_us: float, num_sessions: int) -> None:
        """One of so many sessions gained so much in a step, whether it takes part or not."""
        call = self.open
        if call is not None:
            call.net_us = min(call.net_us + gain_us / num_sessions, MOST_GAIN * plain_us)
            if call.has_lost(plain_us):
                self._fail()

    def _fail(self) -> None:
        self.open = None
        self.failures += 1
        self._tokens_since = 0.0

    def succeed(self, call: Call) -> None:
        """A session gained by it for long."""
        call.is_trial = False
        self.failures = 0

    def pass_tokens(self, num_tokens: int, num_sessions: int) -> None:
        """One of so many sessions decoded."""
        self._tokens_since += num_tokens / max(num_sessions, 1)

    @property
    def may_try(self) -> bool:
        """Whether the last failure is long enough ago for a trial."""
        if not self.failures:
            return True
        return self._tokens_since >= _PAUSES[min(self.failures, len(_PAUSES)) - 1]


class Membership:
    """One session's part in them."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._heard: Call | None = None
        # Of which it is a member.
        self._call: Call | None = None
        self._interludes = 0

    @property
    def is_on(self) -> bool:
        return self._call is not None

    @property
    def is_over(self) -> bool:
        """Whether it takes part in what has failed."""
        return self._call is not None and self._call is not self._calls.open

    def news(self) -> Call | None:
        """Return the open call if the session has not answered it yet."""
        call = self._calls.open
        return None if call is self._heard else call

    def answer(self) -> None:
        """Whether it takes part or not, the session has heard the open call."""
        self._heard = self._calls.open

    def begin(self, call: Call) -> None:
        """Call all others, or join them: a session that begins with another drafter is alone."""
        opened = self._calls.open = self._calls.open or call
        self.answer()
        if opened.drafter_id == call.drafter_id:
            opened.members += 1
            self._call, self._interludes = opened, self._calls.interludes

    def leave(self, *, lost: bool) -> None:
        """The session's spell is over."""
        if self._call is not None:
            self._calls.leave(self._call, lost=lost)
            self._call = None

    def succeed(self) -> None:
        """The session gained for long."""
        if self._call is not None:
            self._calls.succeed(self._call)

    def begin_interlude(self) -> None:
        """Have all decode plainly for a few tokens."""
        self._calls.interludes += 1

    def takes_interlude(self) -> bool:
        """Whether there is one that the session has not taken; it takes it now."""
        due = self._interludes != self._calls.interludes
        self._interludes = self._calls.interludes
        return due
