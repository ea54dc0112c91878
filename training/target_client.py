"""A target as those who make drafters see it: it decodes, and tells the taps of what it decoded.

Legend: T rows, X tapped width (layers * hidden).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
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


class Target:
    """A target service."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._stub = target_pb2_grpc.TargetServiceStub(channel)

    async def info(self) -> target_pb2.GetTargetResponse:
        """Ask what the target is. Raises AioRpcError."""
        return await self._stub.GetTarget(target_pb2.GetTargetRequest())

    async def decode(self, decoding: Decoding) -> list[int]:
        """Return the new tokens, a stop token among them. Raises AioRpcError."""
        return await _patiently(partial(self._decode, decoding, expect_taps=False))

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
        taps = asyncio.create_task(self._taps(decoding, pairing))
        try:
            answer = await self._decode(decoding, expect_taps=True)
            return answer, torch.cat(await taps)
        finally:
            taps.cancel()

    async def _decode(self, decoding: Decoding, *, expect_taps: bool) -> list[int]:
        """Decode until the end of the answer; then the session is closed, and its taps end."""
        call = self._stub.Decode()
        try:
            await call.write(target_pb2.DecodeRequest(open=_opening(decoding, expect_taps)))
            new_tokens: list[int] = []
            async for response in call:
                if response.WhichOneof("message") == "verdict":
                    new_tokens += Verdict.from_proto(response.verdict).tokens
                    if _is_finished(decoding, new_tokens):
                        break
            return new_tokens
        finally:
            call.cancel()

    async def _taps(self, decoding: Decoding, pairing: Pairing) -> list[torch.Tensor]:
        """Return the session's taps in order, until its end."""
        request = target_pb2.StreamTapsRequest(
            session_id=decoding.session_id,
            pairing=pairing.to_proto(),
            known_len=len(decoding.tokens),
            min_rows=_ROWS_OF_A_FRAME,
        )
        frames = []
        async for response in self._stub.StreamTaps(request):
            if response.WhichOneof("message") == "frame":
                frames.append(tensors.from_proto(response.frame.taps))
        return frames


async def _patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Try a call again while the target has no room for it. Raises AioRpcError for all else."""
    while True:
        try:
            return await call()
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
        await asyncio.sleep(_RETRY_S)


def _opening(decoding: Decoding, expect_taps: bool) -> target_pb2.OpenSession:
    return target_pb2.OpenSession(
        session_id=decoding.session_id,
        prompt_token_ids=decoding.tokens,
        max_new_tokens=decoding.max_new_tokens,
        sampling=decoding.sampling.to_proto(),
        expect_taps=expect_taps,
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
