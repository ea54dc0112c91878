"""The draft service's gRPC face: follow a session's taps, push a tree for every commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, NoReturn

import grpc

from draft_service.draft_loop import DraftLoop
from draft_service.drafters import Drafter
from draft_service.following import Following
from draft_service.kv_pool import KvPoolFullError
from draft_service.outbox import Outbox
from draft_service.registry import DrafterRefusedError, Registered, Registry
from draft_service.session import DraftSession
from draft_service.upstream import Target
from kernels.kv_pages import PAGE_LEN
from protos import draft_pb2 as pb
from protos import draft_pb2_grpc
from protos.messages import DraftTree, Plan, SamplingParams
from protos.serving import abort_retryable


class BadRequestError(Exception):
    """The client sent something that no plan is."""


class DraftServicer(draft_pb2_grpc.DraftServiceServicer):
    """DraftService of draft.proto."""

    def __init__(
        self, registry: Registry, target: Target, drafts: DraftLoop, max_sessions: int
    ) -> None:
        self._registry = registry
        self._target = target
        self._drafts = drafts
        self._load = drafts.load
        self._max_sessions = max_sessions

    async def ListDrafters(  # noqa: N802
        self, request: pb.ListDraftersRequest, context: Any
    ) -> pb.ListDraftersResponse:
        """Say which drafters there are, and which are refused and why."""
        del request, context
        return pb.ListDraftersResponse(
            drafters=[_drafter_info(entry) for entry in self._registry.all],
            default_drafter_id=self._registry.default_id,
            load=self._load_now(),
        )

    def _load_now(self) -> pb.DraftLoad:
        load, pages = self._load, self._load.kv_pages
        return pb.DraftLoad(
            sessions=load.sessions,
            tap_subscriptions=load.tap_subscriptions,
            kv_tokens_reserved=pages.used * PAGE_LEN,
            kv_tokens_total=pages.total * PAGE_LEN,
            batches=load.batches,
            extended_rows=load.extended_rows,
            grown_rows=load.grown_rows,
            dropped_for_memory=load.dropped_for_memory,
        )

    async def Draft(  # noqa: N802
        self, requests: AsyncIterator[pb.DraftRequest], context: Any
    ) -> AsyncIterator[pb.DraftResponse]:
        """Serve one session from its first message to the end of its stream or of its taps."""
        session, drafter = await self._open(await anext(aiter(requests), None), context)
        if self._load.sessions >= self._max_sessions:
            await abort_retryable(context, f"all {self._max_sessions} sessions are in use")
        self._load.sessions += 1
        try:
            yield pb.DraftResponse(opened=pb.DraftOpened(drafter_id=drafter.drafter_id))
            async with aclosing(self._trees(session, drafter, requests, context)) as trees:
                async for tree in trees:
                    yield pb.DraftResponse(tree=tree.to_proto())
        finally:
            self._load.sessions -= 1

    async def _open(
        self, request: pb.DraftRequest | None, context: Any
    ) -> tuple[DraftSession, Drafter[Any]]:
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
        drafter: Drafter[Any],
        requests: AsyncIterator[pb.DraftRequest],
        context: Any,
    ) -> AsyncGenerator[DraftTree]:
        """Yield the newest tree, again and again, until client, target or drafter end it."""
        outbox = Outbox()
        reading = [
            asyncio.create_task(self._read_taps(session, drafter, outbox)),
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

    async def _read_taps(
        self, session: DraftSession, drafter: Drafter[Any], outbox: Outbox
    ) -> None:
        """Hand every frame over to the drafter, until the target closes the session."""
        following: Following | None = None
        self._load.tap_subscriptions += 1
        try:
            async with aclosing(self._target.taps(session, drafter.pairing)) as frames:
                async for frame in frames:
                    following = following or Following.begin(session, drafter, outbox)
                    await self._drafts.take(following, frame)
            outbox.end()
        except Exception as error:
            outbox.end(error)
        finally:
            self._load.tap_subscriptions -= 1
            if following is not None:
                self._drafts.close(following)


def _new_session(request: pb.OpenDraft, drafter: Drafter[Any]) -> DraftSession:
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


def _drafter_info(entry: Registered) -> pb.DrafterInfo:
    drafter = entry.drafter
    return pb.DrafterInfo(
        drafter_id=entry.spec.drafter_id,
        kind=drafter.kind if drafter else "",
        pairing=drafter.pairing.to_proto() if drafter else None,
        refusal=entry.refusal,
    )
