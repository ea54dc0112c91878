"""Sessions that a shadow follows beside the drafter that serves them.

Nothing here waits for the shadow: it is offered what arrived, and a session that it cannot keep up
with is dropped and counted.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import grpc
import structlog

from draft_service.draft_loop import DraftLoop
from draft_service.following import Following
from draft_service.session import DraftSession
from draft_service.shadow import HeldFrames, Shadow
from draft_service.standings import Standings
from draft_service.upstream import Target
from protos import speculation_pb2 as pb
from protos.pairing import Pairing

log = structlog.get_logger()


class ShadowSession:
    """One session, seen by the candidate."""

    def __init__(
        self, shadow: Shadow, served: DraftSession, drafts: DraftLoop, standings: Standings
    ) -> None:
        """`served` is attached, and none of its frames taken in yet."""
        self._shadow = shadow
        self._served = served
        self._drafts = drafts
        self._standings = standings
        self._held = HeldFrames(shadow)
        self._row_bytes = 0
        self._following: Following | None = None
        self._reading: asyncio.Task[None] | None = None
        self._session = DraftSession(
            served.session_id,
            shadow.candidate.drafter_id,
            list(served.tokens),
            served.sampling,
            served.plan,
        )
        shadow.members.add(self)
        shadow.trial.begin(served.session_id)

    def share_frames(self, arriving: Pairing) -> None:
        """Follow by the frames of the drafter that serves it, which asked for these taps."""
        self._session.attach([], self._served.next_row)
        self._follow(arriving)

    def subscribe(self, target: Target) -> None:
        """Follow by taps of its own, from the present on: what is held back goes to who serves."""
        self._reading = asyncio.create_task(self._read_taps(target))

    async def offer(self, frame: pb.TapFrame) -> None:
        """Hand over a frame that both share."""
        if self._following is not None and self._reading is None:
            await self._take(self._following, frame)

    def close(self) -> None:
        """Follow the session no further. Nothing follows, but perhaps another close."""
        if self._is_closed:
            return
        self._shadow.members.remove(self)
        self._shadow.trial.end(self._served.session_id)
        if self._reading is not None:
            self._reading.cancel()
        if self._following is not None:
            self._drafts.close(self._following)
            self._standings.end(self._following)
            self._following = None
        self._held.clear()

    @property
    def _is_closed(self) -> bool:
        return self not in self._shadow.members

    def _follow(self, arriving: Pairing) -> Following:
        tapped = arriving.tap_layers
        following = Following.shadow(
            self._session, self._shadow.candidate.loaded, tapped, self._held
        )
        self._standings.begin(following, self._shadow.candidate)
        self._following = following
        # No dtype is wider.
        self._row_bytes = 8 + 4 * len(tapped) * arriving.hidden_size
        return following

    async def _take(self, following: Following, frame: pb.TapFrame) -> None:
        """Hand a frame over, unless the session ended here or there is no room for it."""
        self._session.plan = self._served.plan
        num_bytes = self._row_bytes * len(frame.tokens)
        room = self._shadow.may_hold_kv and self._held.hold(num_bytes)
        if following.outbox.has_ended or not room:
            self._drop()
        else:
            await self._drafts.take(following, frame)

    async def _read_taps(self, target: Target) -> None:
        pairing = self._shadow.candidate.loaded.pairing
        self._drafts.load.tap_subscriptions += 1
        try:
            taps = target.taps(self._session, pairing, from_start=True)
            async with aclosing(taps) as frames:
                async for frame in frames:
                    if self._is_closed:
                        return
                    await self._take(self._following or self._follow(pairing), frame)
        except (grpc.aio.AioRpcError, ValueError) as error:
            log.warning("shadow_taps_ended", session_id=self._session.session_id, reason=str(error))
            self._drop()
        finally:
            self._drafts.load.tap_subscriptions -= 1

    def _drop(self) -> None:
        if not self._is_closed:
            self._shadow.dropped += 1
            self.close()


def begin_shadow(
    served: DraftSession,
    pairing: Pairing,
    target: Target,
    drafts: DraftLoop,
    standings: Standings,
) -> ShadowSession | None:
    """Let the shadow follow a session whose drafter is about to take it in, if it is to.

    `pairing` is that drafter's, which says what taps will arrive.
    """
    shadow = standings.shadow
    if shadow is None or not shadow.follows(served.session_id, served.drafter_id):
        return None
    beside = ShadowSession(shadow, served, drafts, standings)
    if set(shadow.candidate.loaded.pairing.tap_layers) <= set(pairing.tap_layers):
        beside.share_frames(pairing)
    else:
        beside.subscribe(target)
    return beside
