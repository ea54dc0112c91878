"""When a step begins: at once, or when sessions are back that would miss it. Sans-I/O; seconds.

A session in rounds is away from its verdict until its next tree. If a step begins without it, it
waits for all of that step; if the step waits, so does everybody who is ready. Begun at a time t
after the last step, with N sessions in play (who decodes plainly counts twice) of which
`missing(t)` come later, all of them together lose

    N t + missing(t) step

so the step begins where that is least. When a session comes back is what it usually takes, as TCP
takes a round trip: a running mean, and four times its deviation to be safe. One that is
overdue is not waited for any more.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import NamedTuple

_NEW_SHARE = 0.25
_DEVIATIONS = 4.0
# Who decodes plainly never asked for company: waiting counts so often for them.
_BYSTANDER = 2.0


@dataclass
class _Usual:
    """How long sessions are away."""

    mean: float
    deviation: float

    @classmethod
    def after(cls, away_s: float) -> _Usual:
        """What the first time tells."""
        return cls(away_s, away_s / 2)

    def add(self, away_s: float) -> None:
        """Take another time in."""
        self.deviation += _NEW_SHARE * (abs(away_s - self.mean) - self.deviation)
        self.mean += _NEW_SHARE * (away_s - self.mean)

    @property
    def at_most(self) -> float:
        return self.mean + _DEVIATIONS * self.deviation


class Ready(NamedTuple):
    """How many could begin a step at once."""

    in_rounds: int
    bystanders: int
    """Those who decode plainly, and prompts."""


class Company:
    """Who is away, and until when the next step waits for whom."""

    def __init__(self) -> None:
        self._usual: dict[Hashable, _Usual] = {}
        # Since when they are away.
        self._left: dict[Hashable, float] = {}
        self._awaited: set[Hashable] = set()
        self._begin_at = 0.0

    def step_ended(
        self, away: Collection[Hashable], ready: Ready, now: float, step_s: float
    ) -> None:
        """A step ended: these of its sessions need a tree first, those are ready for the next."""
        self._left.update(dict.fromkeys(away, now))
        due = {session: self._due(session) - now for session in self._left}
        soon = {session: due_s for session, due_s in due.items() if due_s > 0}
        wait_s = _least_delay(sorted(soon.values()), ready, step_s)
        self._begin_at = now + wait_s
        self._awaited = {session for session, due_s in soon.items() if due_s <= wait_s}

    def came_back(self, session: Hashable, now: float) -> None:
        """A session brought its tree."""
        left = self._left.pop(session, None)
        self._awaited.discard(session)
        if left is None:
            return
        if session in self._usual:
            self._usual[session].add(now - left)
        else:
            self._usual[session] = _Usual.after(now - left)

    def stays_away(self, session: Hashable) -> None:
        """A session that was away does something else now."""
        self._left.pop(session, None)
        self._awaited.discard(session)

    def forget(self, session: Hashable) -> None:
        """A session has ended."""
        self.stays_away(session)
        self._usual.pop(session, None)

    def waits_for_s(self, now: float) -> float:
        """Return how long the next step should wait, at most; 0 to begin now."""
        return max(self._begin_at - now, 0.0) if self._awaited else 0.0

    def _due(self, session: Hashable) -> float:
        """Return when a session should be back; one that never was is not waited for."""
        usual = self._usual.get(session)
        return self._left[session] + usual.at_most if usual else -math.inf


def _least_delay(returns: list[float], ready: Ready, step_s: float) -> float:
    """Return when to begin, after a step, if sessions come back after these times, in order.

    Where nobody is ready there is nothing to begin before the first is back.
    """
    in_play = ready.in_rounds + _BYSTANDER * ready.bystanders + len(returns)
    times = [0.0, *returns] if ready.in_rounds or ready.bystanders else returns
    missing = range(len(times) - 1, -1, -1)
    delays = [in_play * t + n * step_s for t, n in zip(times, missing, strict=True)]
    return times[delays.index(min(delays))] if times else 0.0
