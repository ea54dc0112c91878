"""The draft service's side of the target: find out what it is, and follow its taps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import grpc
import structlog

from draft_service.drafters.target_side import TargetSide
from draft_service.registry import Registry
from draft_service.session import DraftSession
from protos import speculation_pb2, target_pb2, target_pb2_grpc
from protos.pairing import Pairing

log = structlog.get_logger()

_MAX_PAUSE_S = 5.0


class Target:
    """The target service as seen from here."""

    def __init__(self, channel: grpc.aio.Channel, address: str) -> None:
        self.address = address
        self._stub = target_pb2_grpc.TargetServiceStub(channel)

    async def attach(self, registry: Registry, model_dir: Path | None) -> None:
        """Wait for the target, then load the drafters for it. Logged once, retried with backoff."""
        pause_s = 0.1
        while True:
            try:
                info = await self._stub.GetTarget(target_pb2.GetTargetRequest())
                break
            except grpc.aio.AioRpcError as error:
                if pause_s == 0.1:
                    log.warning("target_unreachable", target=self.address, reason=error.details())
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        log.info("attached", target=self.address, model=info.model_name)
        pairing = Pairing.from_proto(info.pairing)
        side = TargetSide.from_proto(info, model_dir)
        await asyncio.to_thread(registry.load_first, side, pairing)

    async def taps(
        self, session: DraftSession, pairing: Pairing, *, from_start: bool
    ) -> AsyncGenerator[speculation_pb2.TapFrame]:
        """Attach the session to its taps and yield its frames until the target closes it.

        `from_start` asks for rows that were told before, too. The first subscriber of a new session
        need not: the target holds them back for it.
        The session is attached before the first frame. Cancels the call however it is left.
        """
        request = target_pb2.StreamTapsRequest(
            session_id=session.session_id,
            pairing=pairing.to_proto(),
            known_len=session.committed_len,
            stored=from_start,
        )
        call = self._stub.StreamTaps(request)
        try:
            async for response in call:
                if response.WhichOneof("message") == "attached":
                    session.attach(response.attached.tokens, response.attached.first_row)
                else:
                    yield response.frame
        finally:
            call.cancel()
