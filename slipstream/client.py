"""A small typed client of the gateway, sync and async.

with Client("127.0.0.1:50050") as client:
    for chunk in client.stream(Request(chat="What is a slipstream?")):
        print(chunk.text, end="")
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from protos import gateway_pb2 as pb
from protos import gateway_pb2_grpc, serving
from slipstream.probe import open_channel

MODES = {
    "auto": pb.Speculation.MODE_AUTO,
    "off": pb.Speculation.MODE_OFF,
    "fixed": pb.Speculation.MODE_FIXED,
}


@dataclass(frozen=True)
class Request:
    """What to generate. Exactly one of chat, text and token_ids; None leaves a default alone.

    `chat` is a user's message or a list of {"role", "content"}. `sampling`, `stopping` and
    `speculation` take the fields of their messages in speculation.proto and gateway.proto.
    """

    chat: str | Sequence[Mapping[str, str]] | None = None
    text: str | None = None
    token_ids: Sequence[int] | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    stopping: Mapping[str, Any] = field(default_factory=dict)
    speculation: Mapping[str, Any] = field(default_factory=dict)
    mode: str = "auto"
    request_id: str = ""
    priority: int = 0
    recordable: bool | None = None

    def to_proto(self) -> pb.GenerateRequest:
        """Raises ValueError for an unknown mode or not exactly one prompt."""
        if self.mode not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, got {self.mode!r}")
        given = [self.chat, self.text, self.token_ids]
        if sum(prompt is not None for prompt in given) != 1:
            raise ValueError("give exactly one of chat, text and token_ids")
        speculation = {**_without_none(self.speculation), "mode": MODES[self.mode]}
        return pb.GenerateRequest(
            request_id=self.request_id,
            **self._prompt(),
            sampling=_without_none(self.sampling),
            stopping=_without_none(self.stopping),
            speculation=speculation,
            priority=self.priority,
            recordable=self.recordable,
        )

    def _prompt(self) -> dict[str, Any]:
        if self.text is not None:
            return {"text": self.text}
        if self.token_ids is not None:
            return {"token_ids": pb.TokenIds(ids=self.token_ids)}
        assert self.chat is not None, "checked before"
        if isinstance(self.chat, str):
            return {"chat": {"messages": [{"role": "user", "content": self.chat}]}}
        return {"chat": {"messages": [dict(message) for message in self.chat]}}


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Completion:
    """A whole answer."""

    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    finish: pb.FinishInfo
    prompt: pb.PromptInfo

    @classmethod
    def of(cls, chunks: Sequence[pb.GenerateResponse]) -> Completion:
        """Join the chunks of a finished answer."""
        return cls(
            tuple(token for chunk in chunks for token in chunk.token_ids),
            "".join(chunk.text for chunk in chunks),
            tuple(logprob for chunk in chunks for logprob in chunk.logprobs),
            chunks[-1].finish,
            chunks[0].prompt_info,
        )

    @property
    def finish_reason(self) -> str:
        """ "stop" or "length"."""
        name = pb.FinishInfo.Reason.Name(self.finish.reason)
        return name.removeprefix("REASON_").lower()

    def statistics(self) -> dict[str, Any]:
        """What speculation did. `accepted` excludes the bonus tokens; times are in seconds."""
        stats = self.finish.speculation
        decode_s = stats.decode_us / 1e6
        return {
            "rounds": stats.rounds,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "accept_length": stats.accept_length,
            "accepted_by_position": list(stats.accepted_by_position),
            "tokens_per_second": (len(self.token_ids) - 1) / decode_s if decode_s else 0.0,
            "time_to_first_token": stats.time_to_first_token_us / 1e6,
            "missed": stats.missed,
            "drafter": stats.drafter_id,
            "drafter_trouble": stats.drafter_trouble,
            "simulated": stats.simulated,
        }


class Client:
    """A blocking client. Errors are grpc.RpcError with the gateway's status and message."""

    def __init__(self, address: str) -> None:
        """Raises ValueError for what is no address."""
        self._channel = open_channel(address)
        self._stub = gateway_pb2_grpc.GenerationServiceStub(self._channel)

    def stream(
        self, request: Request, *, timeout_s: float | None = None
    ) -> Iterator[pb.GenerateResponse]:
        """Yield chunks as they are made. Leaving the iteration cancels the request."""
        call = self._stub.Generate(request.to_proto(), timeout=timeout_s)
        try:
            yield from call
        finally:
            call.cancel()

    def complete(self, request: Request, *, timeout_s: float | None = None) -> Completion:
        """Return the whole answer."""
        return Completion.of(list(self.stream(request, timeout_s=timeout_s)))

    def info(self) -> pb.GetInfoResponse:
        """Return what the gateway serves."""
        return self._stub.GetInfo(pb.GetInfoRequest())

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClient:
    """The same for asyncio. Errors are grpc.aio.AioRpcError."""

    def __init__(self, address: str) -> None:
        self._channel = serving.open_channel(address)
        self._stub = gateway_pb2_grpc.GenerationServiceStub(self._channel)

    async def stream(
        self, request: Request, *, timeout_s: float | None = None
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Yield chunks as they are made. Leaving the iteration cancels the request."""
        call = self._stub.Generate(request.to_proto(), timeout=timeout_s)
        try:
            async for chunk in call:
                yield chunk
        finally:
            call.cancel()

    async def complete(self, request: Request, *, timeout_s: float | None = None) -> Completion:
        """Return the whole answer."""
        return Completion.of([chunk async for chunk in self.stream(request, timeout_s=timeout_s)])

    async def info(self) -> pb.GetInfoResponse:
        """Return what the gateway serves."""
        return await self._stub.GetInfo(pb.GetInfoRequest())

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
