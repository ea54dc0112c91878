"""The gateway's gRPC face: a request in, a chunk a round out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import grpc

from gateway.generator import Generator
from gateway.refusal import RefusalError
from protos import gateway_pb2 as pb
from protos import gateway_pb2_grpc
from protos.serving import abort_retryable


class GenerationServicer(gateway_pb2_grpc.GenerationServiceServicer):
    """GenerationService of gateway.proto."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator

    async def GetInfo(self, request: pb.GetInfoRequest, context: Any) -> pb.GetInfoResponse:  # noqa: N802
        """Describe the model, its limits and the drafters a request may name."""
        del request, context
        return await self._generator.info()

    async def Generate(  # noqa: N802
        self, request: pb.GenerateRequest, context: Any
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Answer one prompt."""
        try:
            with self._generator.admitted():
                async with aclosing(self._generator.generate(request)) as responses:
                    async for response in responses:
                        yield response
        except RefusalError as refusal:
            await _abort(context, refusal)


async def _abort(context: Any, refusal: RefusalError) -> None:
    if refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        await abort_retryable(context, refusal.message)
    await context.abort(refusal.code, refusal.message)
