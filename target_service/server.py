"""The target's gRPC face: decode a message, call the step loop, encode the answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from protos import target_pb2 as pb
from protos import target_pb2_grpc
from protos.messages import MAX_TREE_NODES, DraftTree, SamplingParams, check_id
from protos.pairing import Pairing
from protos.serving import abort_retryable
from target_service.forced_acceptance import ForcedAcceptance
from target_service.kv_memory import PAGE_LEN
from target_service.scheduler import QueueFullError, Scheduler
from target_service.session import Session
from target_service.session_watch import SessionWatch
from target_service.step_loop import LiveSession, StepLoop
from target_service.taps import SubscriberTooSlowError, TapHub

_MAX_STOP_TOKENS = 1024


@dataclass(frozen=True)
class TargetFacts:
    """What does not change while the service runs."""

    model_name: str
    pairing: Pairing
    num_layers: int
    max_context_len: int
    weights: str
    device: str
    kernels: str
    allows_forced_acceptance: bool = False


class TargetServicer(target_pb2_grpc.TargetServiceServicer):
    """TargetService of target.proto."""

    def __init__(
        self, facts: TargetFacts, loop: StepLoop, scheduler: Scheduler, hub: TapHub
    ) -> None:
        self._facts = facts
        self._loop = loop
        self._scheduler = scheduler
        self._hub = hub
        self._watch = SessionWatch()

    async def GetTarget(  # noqa: N802
        self, request: pb.GetTargetRequest, context: Any
    ) -> pb.GetTargetResponse:
        """Say what this target is and how busy it is."""
        del request, context
        facts = self._facts
        return pb.GetTargetResponse(
            model_name=facts.model_name,
            pairing=facts.pairing.to_proto(),
            num_layers=facts.num_layers,
            max_context_len=facts.max_context_len,
            max_tree_nodes=MAX_TREE_NODES,
            weights=facts.weights,
            device=facts.device,
            kernels=facts.kernels,
            load=self._load(),
        )

    def _load(self) -> pb.TargetLoad:
        memory = self._scheduler.memory
        return pb.TargetLoad(
            **vars(self._loop.totals),
            sessions=self._scheduler.num_sessions,
            queued=self._scheduler.num_ready,
            kv_tokens_reserved=memory.num_held * PAGE_LEN,
            kv_tokens_cached=memory.prefixes.num_unused * PAGE_LEN,
            kv_tokens_total=memory.pool.num_pages * PAGE_LEN,
            tap_subscriptions=self._hub.num_subscriptions,
            preemptions=self._scheduler.num_preempted,
        )

    async def Decode(  # noqa: N802
        self, requests: AsyncIterator[pb.DecodeRequest], context: Any
    ) -> AsyncIterator[pb.DecodeResponse]:
        """Serve one session from its first message to the end of its stream."""
        live = await self._open(await anext(aiter(requests), None), context)
        reader = asyncio.create_task(self._read_wishes(live, requests))
        try:
            opened = pb.SessionOpened(cached_prompt_tokens=live.cached_prompt_tokens)
            yield pb.DecodeResponse(opened=opened)
            while (verdict := await live.verdicts.get()) is not None:
                if isinstance(verdict, Exception):
                    await _abort(context, verdict)
                else:
                    yield pb.DecodeResponse(verdict=verdict.to_proto())
        finally:
            reader.cancel()
            self._loop.close(live)

    async def _open(self, request: pb.DecodeRequest | None, context: Any) -> LiveSession:
        try:
            if request is None or request.WhichOneof("message") != "open":
                raise ValueError("the first message of Decode must be `open`")
            session = self._new_session(request.open)
            live = await self._loop.open(session, expect_taps=request.open.expect_taps)
            if request.open.recordable and session.forced is None:
                self._watch.tell(session)
            return live
        except (ValueError, KeyError, QueueFullError) as error:
            await _abort(context, error)
        raise AssertionError("abort raises")

    def _new_session(self, request: pb.OpenSession) -> Session:
        """Check everything before anything is reserved."""
        limit = self._facts.max_context_len
        prompt, answer = len(request.prompt_token_ids), request.max_new_tokens
        if not 1 <= answer <= limit:
            raise ValueError(f"max_new_tokens must be in [1, {limit}], got {answer}")
        if prompt + answer > limit:
            raise ValueError(
                f"prompt and answer may have {limit} tokens together, "
                f"got {prompt} + max_new_tokens {answer}"
            )
        return Session(
            check_id("session_id", request.session_id),
            list(request.prompt_token_ids),
            SamplingParams.from_proto(request.sampling),
            answer,
            self._facts.pairing.vocab_size,
            _stop_tokens(request.stop_token_ids),
            request.priority,
            run_until=request.run.until_len,
            forced=self._forced(request),
        )

    def _forced(self, request: pb.OpenSession) -> ForcedAcceptance | None:
        if not request.HasField("forced_accept_length"):
            return None
        if not self._facts.allows_forced_acceptance:
            raise ValueError(
                f"forced_accept_length is {request.forced_accept_length}, but the target was not "
                "started with --allow-forced-acceptance"
            )
        return ForcedAcceptance(request.forced_accept_length)

    async def _read_wishes(
        self, live: LiveSession, requests: AsyncIterator[pb.DecodeRequest]
    ) -> None:
        """Pass trees and runs on until the client half-closes; then end the session."""
        try:
            async for request in requests:
                match request.WhichOneof("message"):
                    case "verify":
                        self._loop.verify(live, DraftTree.from_proto(request.verify))
                    case "run":
                        self._loop.run(live, request.run.until_len)
                    case _:
                        raise ValueError(
                            "every message of Decode after the first must be `verify` or `run`"
                        )
            live.verdicts.put_nowait(None)
        except ValueError as error:
            live.verdicts.put_nowait(error)

    async def StreamTaps(  # noqa: N802
        self, request: pb.StreamTapsRequest, context: Any
    ) -> AsyncIterator[pb.StreamTapsResponse]:
        """Stream one session's taps to a subscriber that fits."""
        pairing = Pairing.from_proto(request.pairing)
        if mismatches := pairing.mismatches(self._facts.pairing):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "; ".join(mismatches))
        try:
            subscribe = self._loop.subscribe_from_start if request.stored else self._hub.subscribe
            subscription, missed, first_row = await subscribe(
                request.session_id, pairing, request.known_len, request.min_rows
            )
        except KeyError:
            message = f"no session {request.session_id[:80]!r}"
            await context.abort(grpc.StatusCode.NOT_FOUND, message)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        try:
            attached = pb.TapsAttached(tokens=missed, first_row=first_row)
            yield pb.StreamTapsResponse(attached=attached)
            while frame := await subscription.next_frame():
                yield pb.StreamTapsResponse(frame=frame)
        except SubscriberTooSlowError as error:
            await abort_retryable(context, str(error))
        finally:
            self._hub.unsubscribe(request.session_id, subscription)

    async def WatchSessions(  # noqa: N802
        self, request: pb.WatchSessionsRequest, context: Any
    ) -> AsyncIterator[pb.WatchSessionsResponse]:
        """Tell of every session that may be recorded."""
        del request, context
        queue = self._watch.watch()
        try:
            while True:
                session = await queue.get()
                yield pb.WatchSessionsResponse(
                    session_id=session.session_id,
                    prompt_len=session.prompt_len,
                    sampling=session.sampling.to_proto(),
                )
        finally:
            self._watch.leave(queue)


def _stop_tokens(token_ids: Sequence[int]) -> frozenset[int]:
    if len(token_ids) > _MAX_STOP_TOKENS:
        raise ValueError(
            f"stop_token_ids may have {_MAX_STOP_TOKENS} entries, got {len(token_ids)}"
        )
    return frozenset(token_ids)


async def _abort(context: Any, error: Exception) -> None:
    """End a Decode call with the status that fits the error."""
    match error:
        case ValueError():
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        case KeyError():
            message = f"session_id {error.args[0]!r} is in use"
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, message)
        case QueueFullError():
            await abort_retryable(context, str(error))
        case _:
            await context.abort(grpc.StatusCode.INTERNAL, f"the step failed: {error}")
