"""`python -m gateway --model DIRECTORY`: answer clients through a target and draft services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import structlog

from gateway.chat_template import ChatTemplate
from gateway.config import GatewayConfig
from gateway.detokenizer import IncrementalDetokenizer
from gateway.experience import Experience
from gateway.experience_file import ExperienceFile, key_of
from gateway.generator import Generator, Rules
from gateway.http.server import HttpFront
from gateway.sampling_params import ModelText
from gateway.server import GenerationServicer
from gateway.tokenizer import Tokenizer
from gateway.upstream import DraftReplicas
from protos import gateway_pb2_grpc, serving, target_pb2, target_pb2_grpc

log = structlog.get_logger()

_RETRY_PAUSE_S = 0.5


async def describe_target(stub: target_pb2_grpc.TargetServiceStub) -> target_pb2.GetTargetResponse:
    """Wait for the target and return what it says of itself. Says once that it waits."""
    logged = False
    while True:
        try:
            return await stub.GetTarget(target_pb2.GetTargetRequest())
        except grpc.aio.AioRpcError as error:
            if not logged:
                log.warning("target_unreachable", reason=error.details())
                logged = True
            await asyncio.sleep(_RETRY_PAUSE_S)


def load_text(config: GatewayConfig, target: target_pb2.GetTargetResponse) -> ModelText:
    """Load tokenizer and template. Raises ValueError if the target's model has others."""
    tokenizer = Tokenizer.from_directory(config.model)
    # A decoder that cannot be streamed is found now, not in the first answer.
    IncrementalDetokenizer(tokenizer)
    theirs = target.pairing.tokenizer_digest
    if theirs and theirs != tokenizer.digest:
        raise ValueError(
            f"tokenizer.json in {config.model} has digest {tokenizer.digest}, the target "
            f"{target.model_name} has {theirs}"
        )
    return ModelText(
        tokenizer,
        ChatTemplate.from_directory(config.model),
        target.pairing.vocab_size,
        target.max_context_len,
    )


@asynccontextmanager
async def kept_experience(
    path: Path | None, target: target_pb2.GetTargetResponse
) -> AsyncIterator[Experience]:
    """Yield what was learned before, and write down what is learned."""
    if path is None:
        yield Experience()
        return
    file = ExperienceFile(path, key_of(target))
    experience = file.load()
    keeping = asyncio.create_task(file.keep(experience))
    try:
        yield experience
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


async def http_front(generator: Generator, address: str) -> HttpFront:
    """Return a front that listens. Raises OSError if that is not possible."""
    front = HttpFront(generator)
    port = await front.start(address)
    log.info("listening", service="http", address=address, port=port)
    return front


async def main() -> None:
    """Serve until a signal."""
    config = GatewayConfig(_cli_parse_args=True)  # type: ignore[call-arg]
    serving.configure_logging(config.log_level)
    for address in filter(None, (config.listen, config.http_listen)):
        serving.check_listen_address(address, insecure=config.insecure)
    stub = target_pb2_grpc.TargetServiceStub(serving.open_channel(config.target))
    target = await describe_target(stub)
    text = load_text(config, target)
    async with kept_experience(config.experience, target) as experience:
        generator = Generator(
            config.model.resolve().name,
            text,
            stub,
            DraftReplicas([serving.open_channel(address) for address in config.draft]),
            Rules(config.draft_deadline_ms / 1000, config.max_requests, config.record_share),
            experience,
        )
        server = serving.new_server()
        servicer = GenerationServicer(generator)
        gateway_pb2_grpc.add_GenerationServiceServicer_to_server(servicer, server)
        front = await http_front(generator, config.http_listen) if config.http_listen else None
        await serving.serve(server, config.listen, "gateway", front.stop if front else None)


if __name__ == "__main__":
    serving.run(main)
