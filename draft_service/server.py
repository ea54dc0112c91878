"""The draft service's gRPC face: follow a session's taps, push a tree for every commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, NoReturn

import grpc

from draft_service.kv_pool import KvPoolFullError
from draft_service.listing import listing
from draft_service.load import Load
from draft_service.loader import DrafterRefusedError
from draft_service.outbox import Outbox
from draft_service.registry import Registered, Registry
from draft_service.session import DraftSession
from draft_service.standings import Standings
from draft_service.tap_reader import TapReader
from protos import draft_pb2 as pb
from protos import draft_pb2_grpc
from protos.messages import DraftTree, Plan, SamplingParams
from protos.serving import abort_retryable


class BadRequestError(Exception):
    """The client sent something that no plan is."""


class DraftServicer(draft_pb2_grpc.DraftServiceServicer):
    """DraftService of draft.proto."""

    def __init__(
        self,
        registry: Registry,
        standings: Standings,
        taps: TapReader,
        load: Load,
        max_sessions: int,
    ) -> None:
        self._registry = registry
        self._standings = standings
        self._taps = taps
        self._load = load
        self._max_sessions = max_sessions

    async def ListDrafters(  # noqa: N802
        self, request: pb.ListDraftersRequest, context: Any
    ) -> pb.ListDraftersResponse:
        """Say which drafters there are, how they do, and which are refused and why."""
        del request, context
        return listing(self._registry, self._standings, self._load)

    async def Draft(  # noqa: N802
        self, requests: AsyncIterator[pb.DraftRequest], context: Any
    ) -> AsyncIterator[pb.DraftResponse]:
        """Serve one session from its first message to the end of its stream or of its taps."""
        session, entry = await self._open(await anext(aiter(requests), None), context)
        if self._load.sessions >= self._max_sessions:
            await abort_retryable(context, f"all {self._max_sessions} sessions are in use")
        outbox = Outbox()
        self._load.sessions += 1
        try:
            with self._registry.serving(entry, outbox):
                yield pb.DraftResponse(opened=pb.DraftOpened(drafter_id=entry.drafter_id))
                trees = self._trees(session, entry, outbox, requests, context)
                async with aclosing(trees):
                    async for tree in trees:
                        yield pb.DraftResponse(tree=tree.to_proto())
        finally:
            self._load.sessions -= 1

    async def _open(
        self, request: pb.DraftRequest | None, context: Any
    ) -> tuple[DraftSession, Registered]:
        try:
            if request is None or request.WhichOneof("message") != "open":
                raise ValueError("the first message of Draft must be `open`")
            entry = self._registry.route(request.open.session_id, request.open.drafter_id)
            return _new_session(request.open, entry), entry
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except DrafterRefusedError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except KeyError as error:
            await context.abort(*self._unknown_drafter(error.args[0]))
        raise AssertionError("abort raises")

    def _unknown_drafter(self, drafter_id: str) -> tuple[grpc.StatusCode, str]:
        if self._registry.loader is None:
            return grpc.StatusCode.UNAVAILABLE, self._taps.unreachable
        known = [entry.drafter_id for entry in self._registry.all]
        message = f"no drafter {drafter_id[:80]!r}; known: {', '.join(known)}"
        return grpc.StatusCode.NOT_FOUND, message

    async def _trees(
        self,
        session: DraftSession,
        entry: Registered,
        outbox: Outbox,
        requests: AsyncIterator[pb.DraftRequest],
        context: Any,
    ) -> AsyncGenerator[DraftTree]:
        """Yield the newest tree, again and again, until client, target or drafter end it."""
        reading = [
            asyncio.create_task(self._taps.read(session, entry, outbox)),
            asyncio.create_task(_read_plans(session, requests, outbox)),
        ]
        try:
            while (tree := await outbox.get()) is not None:
                yield tree
        except Exception as error:
            await _abort(context, error)
        finally:
            for task in reading:
                task.cancel()


def _new_session(request: pb.OpenDraft, entry: Registered) -> DraftSession:
    vocab_size = entry.loaded.pairing.vocab_size
    for token in request.token_ids:
        if token >= vocab_size:
            raise ValueError(f"token_ids must be in [0, {vocab_size}), got {token}")
    return DraftSession(
        request.session_id,
        entry.drafter_id,
        list(request.token_ids),
        SamplingParams.from_proto(request.sampling),
        Plan.from_proto(request.plan),
        joins_late=0 < request.prompt_len < len(request.token_ids),
    )


async def _read_plans(
    session: DraftSession, requests: AsyncIterator[pb.DraftRequest], outbox: Outbox
) -> None:
    """Follow changes of the standing plan until the client half-closes or sends nonsense."""
    try:
        async for request in requests:
            if request.WhichOneof("message") != "plan":
                raise ValueError("every message of Draft after the first must be `plan`")
            session.plan = Plan.from_proto(request.plan)
        outbox.end()
    except ValueError as error:
        outbox.end(BadRequestError(str(error)))


async def _abort(context: Any, error: Exception) -> NoReturn:
    """End a Draft call because its client, its taps or its drafter went wrong."""
    match error:
        case BadRequestError():
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        case KvPoolFullError():
            await abort_retryable(context, str(error))
        case DrafterRefusedError():
            message = f"the drafter was taken out of service: {error}"
            await context.abort(grpc.StatusCode.UNAVAILABLE, message)
        case ValueError():
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"the taps broke: {error}")
        case grpc.aio.AioRpcError():
            await _abort_with_the_target(context, error)
    await context.abort(grpc.StatusCode.INTERNAL, f"the drafter failed: {error}")
    raise AssertionError("abort raises")


async def _abort_with_the_target(context: Any, error: grpc.aio.AioRpcError) -> None:
    """End a Draft call as the target ended its taps."""
    code, reason = error.code(), error.details() or ""
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        await context.abort(code, reason)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        await abort_retryable(context, reason)
    await context.abort(grpc.StatusCode.UNAVAILABLE, f"the target's taps ended: {reason}")
