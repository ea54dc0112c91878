"""A target service whose tap streams follow a script: all that a draft service sees of one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import torch

from protos import speculation_pb2, target_pb2_grpc, tensors
from protos import target_pb2 as pb
from protos.pairing import Pairing
from tests.loopback import listening

PAIRING = Pairing(hidden_size=32, vocab_size=40, tap_layers=(2, 4, 5), target_fingerprint="f00d")

Script = Callable[[pb.StreamTapsRequest, Any], AsyncIterator[pb.StreamTapsResponse]]


def attached(tokens: Sequence[int] = (), first_row: int = 0) -> pb.StreamTapsResponse:
    """Return the first message of a tap stream."""
    return pb.StreamTapsResponse(attached=pb.TapsAttached(tokens=tokens, first_row=first_row))


def frame(base_len: int, tokens: Sequence[int], **rest: Any) -> pb.StreamTapsResponse:
    """Return the newest frame of a session: its tokens are all that is committed."""
    tap_frame = speculation_pb2.TapFrame(
        base_len=base_len, tokens=tokens, committed_len=base_len + len(tokens) + 1, **rest
    )
    return pb.StreamTapsResponse(frame=tap_frame)


def tapped(base_len: int, tokens: Sequence[int]) -> pb.StreamTapsResponse:
    """Return a frame with taps."""
    width = len(PAIRING.tap_layers) * PAIRING.hidden_size
    taps = torch.ones(len(tokens), width, dtype=tensors.torch_dtype(PAIRING.tap_dtype))
    return frame(base_len, tokens, taps=tensors.to_proto(taps))


class ScriptedTarget(target_pb2_grpc.TargetServiceServicer):
    """Answers every StreamTaps by the script."""

    def __init__(self, script: Script, pairing: Pairing = PAIRING) -> None:
        self._script = script
        self._pairing = pairing
        self.requests: list[pb.StreamTapsRequest] = []
        self.num_streams = 0

    async def GetTarget(self, request: pb.GetTargetRequest, context: Any) -> pb.GetTargetResponse:  # noqa: N802
        """Say what it is."""
        return pb.GetTargetResponse(
            model_name="scripted",
            pairing=self._pairing.to_proto(),
            num_layers=8,
            max_context_len=512,
        )

    async def StreamTaps(  # noqa: N802
        self, request: pb.StreamTapsRequest, context: Any
    ) -> AsyncIterator[pb.StreamTapsResponse]:
        """Follow the script, and note whether the subscriber is still there."""
        self.requests.append(request)
        self.num_streams += 1
        try:
            async for response in self._script(request, context):
                yield response
        finally:
            self.num_streams -= 1

    def add_to(self, server: Any) -> None:
        target_pb2_grpc.add_TargetServiceServicer_to_server(self, server)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Yield the address it serves on; it dies at the end."""
        async with listening(self.add_to) as address:
            yield address


def playing(*responses: pb.StreamTapsResponse) -> Script:
    """Return a script that sends these to every subscriber, and then nothing more."""

    async def script(
        request: pb.StreamTapsRequest, context: Any
    ) -> AsyncIterator[pb.StreamTapsResponse]:
        for response in responses:
            yield response
        await asyncio.Event().wait()

    return script


class Feed:
    """A script that sends what the test puts in, each response to one subscriber."""

    def __init__(self) -> None:
        self._responses: asyncio.Queue[pb.StreamTapsResponse | None] = asyncio.Queue()

    def put(self, *responses: pb.StreamTapsResponse) -> None:
        """Send these next."""
        for response in responses:
            self._responses.put_nowait(response)

    def end(self) -> None:
        """Close the session."""
        self._responses.put_nowait(None)

    async def __call__(
        self, request: pb.StreamTapsRequest, context: Any
    ) -> AsyncIterator[pb.StreamTapsResponse]:
        """Play."""
        while (response := await self._responses.get()) is not None:
            yield response


class Conversations:
    """A script that sends every subscriber of a session what the test says of that session.

    With taps for those who asked for layers. The first subscriber of a session gets all that was
    held back for it, a later one begins at the present.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self._prompt = list(prompt)
        self._tokens: dict[str, list[int]] = {}
        self._followed: set[str] = set()
        self._news = asyncio.Condition()

    async def commit(self, session_id: str, *tokens: int) -> int:
        """Commit tokens of a session; return how many there are now."""
        async with self._news:
            committed = self._tokens.setdefault(session_id, list(self._prompt))
            committed.extend(tokens)
            self._news.notify_all()
            return len(committed)

    async def __call__(
        self, request: pb.StreamTapsRequest, context: Any
    ) -> AsyncIterator[pb.StreamTapsResponse]:
        """Play."""
        tokens = self._tokens.setdefault(request.session_id, list(self._prompt))
        row = len(tokens) - 1 if request.session_id in self._followed else 0
        self._followed.add(request.session_id)
        yield attached(tokens[request.known_len :], row)
        make = tapped if request.pairing.tap_layers else frame
        while True:
            async with self._news:
                await self._news.wait_for(lambda: len(tokens) - 1 > row)  # noqa: B023
                new = tokens[row + 1 :]
            yield make(row, new)
            row += len(new)
