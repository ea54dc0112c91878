"""Reads the taps of sessions, and hands them to their drafters and to shadows beside those."""

from __future__ import annotations

from contextlib import aclosing

from draft_service.draft_loop import DraftLoop
from draft_service.following import Following
from draft_service.outbox import Outbox
from draft_service.registry import Registered
from draft_service.session import DraftSession
from draft_service.shadowing import ShadowSession, begin_shadow
from draft_service.standings import Standings
from draft_service.upstream import Target
from protos.pairing import Pairing


class TapReader:
    """Reads sessions' taps, each until the target closes it."""

    def __init__(self, target: Target, drafts: DraftLoop, standings: Standings) -> None:
        self._target = target
        self._drafts = drafts
        self._standings = standings

    @property
    def unreachable(self) -> str:
        """Why nothing can be drafted yet."""
        return f"the target {self._target.address} was not reachable yet"

    async def read(self, session: DraftSession, entry: Registered, outbox: Outbox) -> None:
        """Hand every frame over to the drafter; the outbox is told how it ended."""
        drafter = entry.loaded
        following: Following | None = None
        shadow: ShadowSession | None = None
        self._drafts.load.tap_subscriptions += 1
        try:
            taps = self._target.taps(session, drafter.pairing, from_start=session.joins_late)
            async with aclosing(taps) as frames:
                async for frame in frames:
                    if following is None:
                        following = Following.begin(session, drafter, outbox)
                        self._standings.begin(following, entry)
                        shadow = self._begin_shadow(session, drafter.pairing)
                    await self._drafts.take(following, frame)
                    if shadow is not None:
                        await shadow.offer(frame)
            outbox.end()
        except Exception as error:
            outbox.end(error)
        finally:
            self._drafts.load.tap_subscriptions -= 1
            self._end(following, shadow)

    def _begin_shadow(self, session: DraftSession, pairing: Pairing) -> ShadowSession | None:
        return begin_shadow(session, pairing, self._target, self._drafts, self._standings)

    def _end(self, following: Following | None, shadow: ShadowSession | None) -> None:
        if shadow is not None:
            shadow.close()
        if following is not None:
            self._drafts.close(following)
            self._standings.end(following)
