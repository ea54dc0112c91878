"""The gateway's gRPC face: a request in, a chunk a round out."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import grpc
import structlog

from gateway.answer import Finish
from gateway.experience import Experience
from gateway.policy import policy_for
from gateway.sampling_params import Generation, ModelText, parse_request
from gateway.session import Committed, RoundTimings, Session
from gateway.upstream import DraftReplicas, TargetStream
from protos import draft_pb2, gateway_pb2_grpc, target_pb2_grpc
from protos import gateway_pb2 as pb
from protos.messages import MAX_TREE_NODES
from protos.serving import abort_retryable

log = structlog.get_logger()

_LIST_TIMEOUT_S = 1.0
_LIST_EVERY_S = 10.0
_REASONS = {
    "stop": pb.FinishInfo.REASON_STOP,
    "length": pb.FinishInfo.REASON_LENGTH,
}


@dataclass(frozen=True)
class Rules:
    """What holds for all requests."""

    deadline_s: float
    """How long a round waits for a draft."""
    max_requests: int
    record_share: float = 0.0
    """Of requests that do not say whether they may be recorded."""


class GenerationServicer(gateway_pb2_grpc.GenerationServiceServicer):
    """GenerationService of gateway.proto."""

    def __init__(
        self,
        model_name: str,
        model: ModelText,
        target: target_pb2_grpc.TargetServiceStub,
        replicas: DraftReplicas,
        rules: Rules,
        experience: Experience,
    ) -> None:
        self._model_name = model_name
        self._model = model
        self._target = target
        self._replicas = replicas
        self._rules = rules
        self._experience = experience
        # What simulated requests teach is not true of others.
        self._simulated = Experience()
        self._running = 0
        self._listed_at = -math.inf
        self._listing: asyncio.Task[None] | None = None

    async def GetInfo(self, request: pb.GetInfoRequest, context: Any) -> pb.GetInfoResponse:  # noqa: N802
        """Describe the model, its limits and the drafters a request may name."""
        del request, context
        listed = await self._list_drafters()
        return pb.GetInfoResponse(
            version=version("slipstream"),
            model_name=self._model_name,
            vocab_size=self._model.vocab_size,
            max_context_len=self._model.max_context_len,
            max_tree_nodes=MAX_TREE_NODES,
            has_chat_template=self._model.chat_template.exists,
            drafter_ids=[info.drafter_id for info in listed.drafters if not info.refusal],
            default_drafter_id=listed.default_drafter_id,
            running_requests=self._running,
        )

    async def _list_drafters(self) -> draft_pb2.ListDraftersResponse:
        """Ask the replicas in turn; one that does not answer is passed over."""
        request = draft_pb2.ListDraftersRequest()
        for replica in self._replicas.rotation():
            with suppress(grpc.aio.AioRpcError):
                return await replica.ListDrafters(request, timeout=_LIST_TIMEOUT_S)
        return draft_pb2.ListDraftersResponse()

    def _look_for_rivals(self) -> None:
        """Find out now and then, beside the requests, which drafters there are."""
        if time.monotonic() - self._listed_at >= _LIST_EVERY_S:
            self._listed_at = time.monotonic()
            self._listing = asyncio.create_task(self._list_rivals())

    async def _list_rivals(self) -> None:
        """Note which drafters there are. While nobody answers, what was known stays."""
        listed = await self._list_drafters()
        if not listed.drafters:
            return
        self._experience.kinds = {info.drafter_id: info.kind for info in listed.drafters}
        self._experience.default_drafter = listed.default_drafter_id
        self._experience.rivals = tuple(
            info.drafter_id
            for info in listed.drafters
            if not info.refusal and info.drafter_id != listed.default_drafter_id
        )

    async def _unknown_drafter(self, generation: Generation) -> str:
        """Return what is wrong with a drafter's name: auto may not come to try it.

        Replicas need not have the same drafters: with several, only opening a stream tells.
        """
        drafter_id, alone = generation.drafter_id, len(self._replicas) == 1
        if not drafter_id or not alone or generation.speculation.mode != "auto":
            return ""
        if self._listing is not None:
            await asyncio.shield(self._listing)
        known = self._experience.kinds
        if not known or drafter_id in known:
            return ""
        return f"no drafter {drafter_id!r}; known: {', '.join(known)}"

    async def Generate(  # noqa: N802
        self, request: pb.GenerateRequest, context: Any
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Answer one prompt."""
        started_ns = time.perf_counter_ns()
        try:
            # In a thread: a megabyte of text takes a while to tokenize.
            generation = await asyncio.to_thread(
                parse_request, request, self._model, self._rules.record_share
            )
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        most = self._rules.max_requests
        if self._running >= most:
            await abort_retryable(context, f"{most} requests are running already")
        self._running += 1
        self._look_for_rivals()
        try:
            async with aclosing(self._responses(generation, started_ns)) as responses:
                async for response in responses:
                    yield response
        except grpc.aio.AioRpcError as error:
            await _abort(context, error)
        except ValueError as error:
            message = f"the target answered with nonsense: {error}"
            await context.abort(grpc.StatusCode.UNAVAILABLE, message)
        finally:
            self._running -= 1

    async def _responses(
        self, generation: Generation, started_ns: int
    ) -> AsyncGenerator[pb.GenerateResponse]:
        trouble = await self._unknown_drafter(generation)
        # An id of our own: two clients may choose the same request id.
        target = TargetStream(self._target, secrets.token_hex(16))
        experience = self._simulated if generation.simulated else self._experience
        policy = policy_for(generation.speculation, experience, generation.drafter_id)
        session = Session(generation, self._model, target, policy, self._rules.deadline_s)
        session.statistics.trouble = trouble
        first_ns = 0
        async with aclosing(session.run(self._replicas)) as chunks:
            async for committed in chunks:
                response = _to_proto(generation, committed)
                if not first_ns:
                    first_ns = time.perf_counter_ns()
                    response.prompt_info.CopyFrom(_prompt_info(generation))
                if committed.chunk.finish is not None:
                    elapsed_ns = (first_ns - started_ns, time.perf_counter_ns() - first_ns)
                    finish = _finish_info(generation, committed.chunk.finish, session, elapsed_ns)
                    response.finish.CopyFrom(finish)
                yield response


def _to_proto(generation: Generation, committed: Committed) -> pb.GenerateResponse:
    chunk, accepted = committed.chunk, committed.accepted
    return pb.GenerateResponse(
        request_id=generation.request_id,
        token_ids=chunk.token_ids,
        text=chunk.text,
        logprobs=chunk.logprobs,
        top_logprobs=[top.to_proto() for top in chunk.top_logprobs],
        accepted_tokens=accepted,
        accepted_text_len=len("".join(chunk.texts[:accepted])),
        timings=_timings(committed.timings) if committed.timings else None,
        simulated=generation.simulated,
    )


def _timings(timings: RoundTimings) -> pb.RoundTimings:
    return pb.RoundTimings(
        round_us=timings.round_us,
        verify=timings.verify.to_proto(),
        draft=timings.draft.to_proto(),
    )


def _prompt_info(generation: Generation) -> pb.PromptInfo:
    return pb.PromptInfo(token_ids=generation.prompt, seed=generation.sampling.seed)


def _finish_info(
    generation: Generation, finish: Finish, session: Session, elapsed_ns: tuple[int, int]
) -> pb.FinishInfo:
    usage = pb.Usage(
        prompt_tokens=len(generation.prompt),
        completion_tokens=session.num_tokens,
        cached_prompt_tokens=session.cached_prompt_tokens,
    )
    return pb.FinishInfo(
        reason=_REASONS[finish.reason],
        stop_token_id=finish.stop_token_id,
        stop_string=finish.stop_string,
        usage=usage,
        speculation=_statistics(generation, session, elapsed_ns),
    )


def _statistics(
    generation: Generation, session: Session, elapsed_ns: tuple[int, int]
) -> pb.SpeculationStats:
    statistics = session.statistics
    return pb.SpeculationStats(
        rounds=statistics.rounds,
        drafted=statistics.drafted,
        accepted=statistics.accepted,
        accept_length=statistics.accept_length,
        accepted_by_position=statistics.accepted_by_position,
        missed=statistics.missed,
        drafter_id=statistics.drafter_id,
        time_to_first_token_us=elapsed_ns[0] // 1000,
        decode_us=elapsed_ns[1] // 1000,
        verify=statistics.verify.to_proto(),
        draft=statistics.draft.to_proto(),
        drafter_trouble=statistics.trouble,
        plans=[
            pb.PlanUse(plan=plan.to_proto(), rounds=rounds)
            for plan, rounds in statistics.rounds_by_plan.most_common()
        ],
        simulated=generation.simulated,
    )


async def _abort(context: Any, error: grpc.aio.AioRpcError) -> None:
    """Pass the target's refusal on; whatever else went wrong there means that it is gone."""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        await context.abort(code, details)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        await abort_retryable(context, details)
    log.error("target_lost", code=code.name, reason=details)
    await context.abort(grpc.StatusCode.UNAVAILABLE, f"the target is gone: {details}")
