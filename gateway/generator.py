"""What answers requests, whichever front they came through: admits, checks, runs, describes."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version

import grpc

from gateway.experience import Experience
from gateway.policy import policy_for
from gateway.refusal import RefusalError, refusal_of
from gateway.responses import chunk_response, finish_info, prompt_info
from gateway.sampling_params import Generation, ModelText, parse_request
from gateway.session import Session
from gateway.upstream import DraftReplicas, TargetStream
from protos import draft_pb2, target_pb2_grpc
from protos import gateway_pb2 as pb
from protos.messages import MAX_TREE_NODES

_LIST_TIMEOUT_S = 1.0
_LIST_EVERY_S = 10.0


@dataclass(frozen=True)
class Rules:
    """What holds for all requests."""

    deadline_s: float
    """How long a round waits for a draft."""
    max_requests: int
    record_share: float = 0.0
    """Of requests that do not say whether they may be recorded."""


class Generator:
    """One model, behind any number of fronts that share its limits."""

    def __init__(
        self,
        model_name: str,
        model: ModelText,
        target: target_pb2_grpc.TargetServiceStub,
        replicas: DraftReplicas,
        rules: Rules,
        experience: Experience,
    ) -> None:
        self.model_name = model_name
        self.model = model
        self._target = target
        self._replicas = replicas
        self._rules = rules
        self._experience = experience
        # What simulated requests teach is not true of others.
        self._simulated = Experience()
        self._running = 0
        self._listed_at = -math.inf
        self._listing: asyncio.Task[None] | None = None

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Hold one of the places for requests, before anything of size is read or computed.

        Raises RefusalError if all are taken.
        """
        most = self._rules.max_requests
        if self._running >= most:
            message = f"{most} requests are running already"
            raise RefusalError(grpc.StatusCode.RESOURCE_EXHAUSTED, message)
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1

    async def generate(self, request: pb.GenerateRequest) -> AsyncGenerator[pb.GenerateResponse]:
        """Answer one prompt that was admitted, a response a round. Raises RefusalError."""
        started_ns = time.perf_counter_ns()
        try:
            # In a thread: a megabyte of text takes a while to tokenize.
            generation = await asyncio.to_thread(
                parse_request, request, self.model, self._rules.record_share
            )
        except ValueError as error:
            raise RefusalError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None
        self._look_for_rivals()
        try:
            async with aclosing(self._responses(generation, started_ns)) as responses:
                async for response in responses:
                    yield response
        except grpc.aio.AioRpcError as error:
            raise refusal_of(error) from None
        except ValueError as error:
            message = f"the target answered with nonsense: {error}"
            raise RefusalError(grpc.StatusCode.UNAVAILABLE, message) from None

    async def info(self) -> pb.GetInfoResponse:
        """Describe the model, its limits and the drafters a request may name."""
        listed = await self._list_drafters()
        return pb.GetInfoResponse(
            version=version("slipstream"),
            model_name=self.model_name,
            vocab_size=self.model.vocab_size,
            max_context_len=self.model.max_context_len,
            max_tree_nodes=MAX_TREE_NODES,
            has_chat_template=self.model.chat_template.exists,
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

    async def _responses(
        self, generation: Generation, started_ns: int
    ) -> AsyncGenerator[pb.GenerateResponse]:
        trouble = await self._unknown_drafter(generation)
        # An id of our own: two clients may choose the same request id.
        target = TargetStream(self._target, secrets.token_hex(16))
        experience = self._simulated if generation.simulated else self._experience
        policy = policy_for(generation.speculation, experience, generation.drafter_id)
        session = Session(generation, self.model, target, policy, self._rules.deadline_s)
        session.statistics.trouble = trouble
        first_ns = 0
        async with aclosing(session.run(self._replicas)) as chunks:
            async for committed in chunks:
                response = chunk_response(generation, committed)
                if not first_ns:
                    first_ns = time.perf_counter_ns()
                    response.prompt_info.CopyFrom(prompt_info(generation))
                if committed.chunk.finish is not None:
                    elapsed_ns = (first_ns - started_ns, time.perf_counter_ns() - first_ns)
                    finish = finish_info(generation, committed.chunk.finish, session, elapsed_ns)
                    response.finish.CopyFrom(finish)
                yield response
