"""A target as those who make drafters see it: it decodes, and tells the taps of what it decoded.

Legend: T rows, X tapped width (layers * hidden).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import grpc
import torch

from protos import serving, target_pb2, target_pb2_grpc, tensors
from protos.messages import SamplingParams, Verdict
from protos.pairing import Pairing

# A subscriber that pays for every message takes many rows in one.
_ROWS_OF_A_FRAME = 64
_RETRY_S = 0.2

T = TypeVar("T")


@dataclass(frozen=True)
class Decoding:
    """A text to be gone on with: plainly, until a stop token or `max_new_tokens`."""

    session_id: str
    tokens: Sequence[int]
    max_new_tokens: int
    sampling: SamplingParams
    stop_token_ids: Collection[int]


@dataclass
class Followed:
    """A session that is followed: its tokens, and its taps from a row on."""

    tokens: list[int] = field(default_factory=list)
    first_row: int = 0
    _frames: list[torch.Tensor] = field(default_factory=list)

    @property
    def taps_TX(self) -> torch.Tensor:  # noqa: N802
        """All taps so far, [T, X]. At least one row was taken in."""
        return torch.cat(self._frames)

    def take(self, response: target_pb2.StreamTapsResponse) -> None:
        """Take in the next message of a tap stream."""
        if response.WhichOneof("message") == "attached":
            self.tokens += response.attached.tokens
            self.first_row = response.attached.first_row
            return
        frame = response.frame
        self.tokens[frame.base_len + 1 :] = frame.tokens
        self._frames.append(tensors.from_proto(frame.taps))


class Target:
    """A target service."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = target_pb2_grpc.TargetServiceStub(channel)

    async def info(self) -> target_pb2.GetTargetResponse:
        """Ask what the target is. Raises AioRpcError."""
        return await self._stub.GetTarget(target_pb2.GetTargetRequest())

    async def decode(self, decoding: Decoding) -> list[int]:
        """Return the new tokens, a stop token among them. Raises AioRpcError."""
        anytime = asyncio.Event()
        anytime.set()
        return await _patiently(partial(self._decode, decoding, anytime))

    async def decode_with_taps(
        self, decoding: Decoding, pairing: Pairing
    ) -> tuple[list[int], torch.Tensor]:
        """Return the new tokens, and the taps of all tokens but the last, [T, X].

        Raises AioRpcError.
        """
        return await _patiently(partial(self._decode_with_taps, decoding, pairing))

    async def _decode_with_taps(
        self, decoding: Decoding, pairing: Pairing
    ) -> tuple[list[int], torch.Tensor]:
        attached = asyncio.Event()
        following = asyncio.create_task(self.follow(decoding.session_id, pairing, attached))
        # However it ends, nobody is to be waited for then.
        following.add_done_callback(lambda _: attached.set())
        try:
            answer = await self._decode(decoding, attached)
            return answer, (await following).taps_TX
        finally:
            following.cancel()

    async def _decode(self, decoding: Decoding, may_end: asyncio.Event) -> list[int]:
        """Decode to the end of the answer; as soon as it may end the session is closed."""
        call = self._stub.Decode()
        try:
            await call.write(target_pb2.DecodeRequest(open=_opening(decoding)))
            new_tokens: list[int] = []
            async for response in call:
                if response.WhichOneof("message") == "verdict":
                    new_tokens += Verdict.from_proto(response.verdict).tokens
                    if _is_finished(decoding, new_tokens):
                        break
            await may_end.wait()
            return new_tokens
        finally:
            call.cancel()

    async def follow(
        self, session_id: str, pairing: Pairing, attached: asyncio.Event | None = None
    ) -> Followed:
        """Follow a session to its end; `attached` is set once it cannot be missed.

        Raises AioRpcError.
        """
        request = target_pb2.StreamTapsRequest(
            session_id=session_id,
            pairing=pairing.to_proto(),
            min_rows=_ROWS_OF_A_FRAME,
            stored=True,
        )
        call = self._stub.StreamTaps(request)
        followed = Followed()
        try:
            async for response in call:
                followed.take(response)
                if attached is not None:
                    attached.set()
            return followed
        finally:
            call.cancel()

    async def watch_sessions(self) -> AsyncIterator[target_pb2.WatchSessionsResponse]:
        """Yield the sessions that may be recorded, each when it opens. Raises AioRpcError."""
        async for notice in self._stub.WatchSessions(target_pb2.WatchSessionsRequest()):
            yield notice


async def _patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Try a call again while the target has no room for it. Raises AioRpcError for all else."""
    while True:
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
        await asyncio.sleep(_RETRY_S)


def _opening(decoding: Decoding) -> target_pb2.OpenSession:
    return target_pb2.OpenSession(
        session_id=decoding.session_id,
        prompt_token_ids=decoding.tokens,
        max_new_tokens=decoding.max_new_tokens,
        sampling=decoding.sampling.to_proto(),
        stop_token_ids=decoding.stop_token_ids,
        run=target_pb2.Run(until_len=len(decoding.tokens) + decoding.max_new_tokens),
    )


def _is_finished(decoding: Decoding, new_tokens: Sequence[int]) -> bool:
    enough = len(new_tokens) >= decoding.max_new_tokens
    return enough or bool(new_tokens and new_tokens[-1] in decoding.stop_token_ids)


@contextlib.asynccontextmanager
async def connect(address: str) -> AsyncIterator[Target]:
    """Yield a client of the target at an address."""
    async with serving.open_channel(address) as channel:
        yield Target(channel)
