"""The draft service's gRPC face: follow a session's taps, push a tree for every commit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

import grpc

from draft_service.drafters import Drafter
from draft_service.engine import Following, follow
from draft_service.registry import DrafterRefusedError, Registered, Registry
from draft_service.session import DraftSession
from draft_service.upstream import Target
from protos import draft_pb2 as pb
from protos import draft_pb2_grpc, speculation_pb2
from protos.messages import DraftTree, Plan, SamplingParams
from protos.serving import abort_retryable

_MAX_FRAMES = 32


class BadRequestError(Exception):
    """The client sent something that no plan is."""


class DraftServicer(draft_pb2_grpc.DraftServiceServicer):
    """DraftService of draft.proto."""

    def __init__(self, registry: Registry, target: Target, max_sessions: int) -> None:
        self._registry = registry
        self._target = target
        self._max_sessions = max_sessions
        self._num_sessions = 0
        self._num_subscriptions = 0
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="drafter")

    async def ListDrafters(  # noqa: N802
        self, request: pb.ListDraftersRequest, context: Any
    ) -> pb.ListDraftersResponse:
        """Say which drafters there are, and which are refused and why."""
        del request, context
        load = pb.DraftLoad(sessions=self._num_sessions, tap_subscriptions=self._num_subscriptions)
        return pb.ListDraftersResponse(
            drafters=[_drafter_info(entry) for entry in self._registry.all],
            default_drafter_id=self._registry.default_id,
            load=load,
        )

    async def Draft(  # noqa: N802
        self, requests: AsyncIterator[pb.DraftRequest], context: Any
    ) -> AsyncIterator[pb.DraftResponse]:
        """Serve one session from its first message to the end of its stream or of its taps."""
        session, drafter = await self._open(await anext(aiter(requests), None), context)
        if self._num_sessions >= self._max_sessions:
            await abort_retryable(context, f"all {self._max_sessions} sessions are in use")
        self._num_sessions += 1
        try:
            yield pb.DraftResponse(opened=pb.DraftOpened(drafter_id=drafter.drafter_id))
            async with aclosing(self._trees(session, drafter, requests, context)) as trees:
                async for tree in trees:
                    yield pb.DraftResponse(tree=tree.to_proto())
        finally:
            self._num_sessions -= 1

    async def _open(
        self, request: pb.DraftRequest | None, context: Any
    ) -> tuple[DraftSession, Drafter]:
        try:
            if request is None or request.WhichOneof("message") != "open":
                raise ValueError("the first message of Draft must be `open`")
            drafter = self._registry.get(request.open.drafter_id)
            return _new_session(request.open, drafter), drafter
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except DrafterRefusedError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except KeyError as error:
            await context.abort(*self._unknown_drafter(error.args[0]))
        raise AssertionError("abort raises")

    def _unknown_drafter(self, drafter_id: str) -> tuple[grpc.StatusCode, str]:
        known = [entry.spec.drafter_id for entry in self._registry.all]
        if not known:
            message = f"the target {self._target.address} was not reachable yet"
            return grpc.StatusCode.UNAVAILABLE, message
        message = f"no drafter {drafter_id[:80]!r}; known: {', '.join(known)}"
        return grpc.StatusCode.NOT_FOUND, message

    async def _trees(
        self,
        session: DraftSession,
        drafter: Drafter,
        requests: AsyncIterator[pb.DraftRequest],
        context: Any,
    ) -> AsyncGenerator[DraftTree]:
        """Yield a tree for every newest frame, until the client or the target ends the session."""
        frames: asyncio.Queue[tuple[speculation_pb2.TapFrame, int] | Exception | None]
        # Bounded, so that a slow drafter holds the stream back and the target notices.
        frames = asyncio.Queue(_MAX_FRAMES)
        pump = asyncio.create_task(self._pump(session, drafter, frames))
        plans = asyncio.create_task(_read_plans(session, requests, frames))
        following: Following | None = None
        try:
            while (item := await frames.get()) is not None:
                if isinstance(item, Exception):
                    await _abort(context, item)
                else:
                    following = following or Following.begin(session, drafter)
                    tree = await self._follow(following, *item, draft=frames.empty())
                    if tree is not None:
                        yield tree
        except ValueError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"the taps broke: {error}")
        finally:
            pump.cancel()
            plans.cancel()

    async def _pump(
        self, session: DraftSession, drafter: Drafter, frames: asyncio.Queue[Any]
    ) -> None:
        """Move frames from the target's stream to the queue, with the time they came."""
        self._num_subscriptions += 1
        try:
            async for frame in self._target.taps(session, drafter.pairing):
                await frames.put((frame, time.perf_counter_ns()))
            await frames.put(None)
        except (grpc.aio.AioRpcError, ValueError) as error:
            await frames.put(error)
        finally:
            self._num_subscriptions -= 1

    async def _follow(
        self,
        following: Following,
        frame: speculation_pb2.TapFrame,
        arrived_ns: int,
        *,
        draft: bool,
    ) -> DraftTree | None:
        if not following.drafter.blocking:
            return follow(following, frame, arrived_ns, draft)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, follow, following, frame, arrived_ns, draft)


def _new_session(request: pb.OpenDraft, drafter: Drafter) -> DraftSession:
    vocab_size = drafter.pairing.vocab_size
    for token in request.token_ids:
        if token >= vocab_size:
            raise ValueError(f"token_ids must be in [0, {vocab_size}), got {token}")
    return DraftSession(
        request.session_id,
        drafter.drafter_id,
        list(request.token_ids),
        SamplingParams.from_proto(request.sampling),
        Plan.from_proto(request.plan),
    )


async def _read_plans(
    session: DraftSession, requests: AsyncIterator[pb.DraftRequest], frames: asyncio.Queue[Any]
) -> None:
    """Follow changes of the standing plan until the client half-closes or sends nonsense."""
    try:
        async for request in requests:
            if request.WhichOneof("message") != "plan":
                raise ValueError("every message of Draft after the first must be `plan`")
            session.plan = Plan.from_proto(request.plan)
        await frames.put(None)
    except ValueError as error:
        await frames.put(BadRequestError(str(error)))


async def _abort(context: Any, error: Exception) -> None:
    """End a Draft call because its client or its taps went wrong."""
    if isinstance(error, BadRequestError):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
    code, reason = None, str(error)
    if isinstance(error, grpc.aio.AioRpcError):
        code, reason = error.code(), error.details() or ""
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        await context.abort(code, reason)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        await abort_retryable(context, reason)
    await context.abort(grpc.StatusCode.UNAVAILABLE, f"the target's taps ended: {reason}")


def _drafter_info(entry: Registered) -> pb.DrafterInfo:
    drafter = entry.drafter
    return pb.DrafterInfo(
        drafter_id=entry.spec.drafter_id,
        kind=drafter.kind if drafter else "",
        pairing=drafter.pairing.to_proto() if drafter else None,
        refusal=entry.refusal,
    )
