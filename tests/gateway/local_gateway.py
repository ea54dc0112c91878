"""A gateway on a socket inside the test, between a scripted target and scripted drafters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import grpc

from gateway.chat_template import ChatTemplate
from gateway.experience import Experience
from gateway.generator import Generator, Rules
from gateway.sampling_params import ModelText
from gateway.server import GenerationServicer
from gateway.tokenizer import Tokenizer
from gateway.upstream import DraftReplicas
from protos import gateway_pb2 as pb
from protos import gateway_pb2_grpc, serving, target_pb2_grpc
from tests.gateway import scripted_drafter, scripted_target, tiny_tokenizers
from tests.gateway.rule_target import RuleTarget
from tests.gateway.scripted_drafter import ScriptedDrafter
from tests.gateway.scripted_target import ScriptedTarget
from tests.loopback import eventually, listening

TOKENIZER = Tokenizer(tiny_tokenizers.byte_level(), config={"eos_token": "<|endoftext|>"})
MODEL = ModelText(TOKENIZER, ChatTemplate(None), TOKENIZER.vocab_size, max_context_len=4096)
RULE = RuleTarget(TOKENIZER.vocab_size)
PROMPT = [40, 41, 42]
# A call that hangs must fail, not stop the tests.
TIMEOUT_S = 60
NOBODY = "127.0.0.1:1"
FIXED = pb.Speculation(mode=pb.Speculation.MODE_FIXED)


class LocalGateway:
    """A gateway, and the services behind it."""

    def __init__(self, stub: gateway_pb2_grpc.GenerationServiceStub, stack: AsyncExitStack) -> None:
        self.stub = stub
        self.target: ScriptedTarget
        self.drafter: ScriptedDrafter
        self.generator: Generator
        self.experience: Experience
        self.kill_target = stack.aclose

    async def is_free(self) -> bool:
        """Whether no service holds anything of a request."""
        info = await self.stub.GetInfo(pb.GetInfoRequest())
        held = (info.running_requests, self.target.num_sessions, self.drafter.num_sessions)
        return held == (0, 0, 0)

    async def all_is_free(self) -> None:
        await eventually(self.is_free)


@asynccontextmanager
async def gateway(
    drafter: scripted_drafter.Script = scripted_drafter.silent,
    target: scripted_target.Script = scripted_target.honest,
    *,
    drafter_address: str = "",
    deadline_s: float = 5.0,
    max_requests: int = 8,
    record_share: float = 0.0,
) -> AsyncIterator[LocalGateway]:
    """Yield a gateway whose services follow these scripts."""
    a_target = ScriptedTarget(RULE, target)
    a_drafter = ScriptedDrafter(drafter, a_target)
    async with AsyncExitStack() as stack, AsyncExitStack() as target_stack:
        target_address = await target_stack.enter_async_context(a_target.serving())
        own_address = await stack.enter_async_context(a_drafter.serving())
        channels = [
            await stack.enter_async_context(serving.open_channel(address))
            for address in (target_address, drafter_address or own_address)
        ]
        experience = Experience()
        generator = Generator(
            "scripted",
            MODEL,
            target_pb2_grpc.TargetServiceStub(channels[0]),
            DraftReplicas(channels[1:]),
            Rules(deadline_s, max_requests, record_share),
            experience,
        )

        servicer = GenerationServicer(generator)

        def add(server: Any) -> None:
            gateway_pb2_grpc.add_GenerationServiceServicer_to_server(servicer, server)

        address = await stack.enter_async_context(listening(add))
        client = await stack.enter_async_context(serving.open_channel(address))
        local = LocalGateway(gateway_pb2_grpc.GenerationServiceStub(client), target_stack)
        local.target, local.drafter = a_target, a_drafter
        local.generator, local.experience = generator, experience
        yield local


def request(new_tokens: int = 24, **fields: Any) -> pb.GenerateRequest:
    """Return a request for exactly so many tokens; drafts are wanted all the time."""
    stopping = pb.StoppingCriteria(max_new_tokens=new_tokens, ignore_eos=True)
    defaults = {"token_ids": pb.TokenIds(ids=PROMPT), "stopping": stopping, "speculation": FIXED}
    given = defaults | fields
    return pb.GenerateRequest(**given)


def generate(local: LocalGateway, **fields: Any) -> Any:
    """Start a request; return its call."""
    return local.stub.Generate(request(**fields), timeout=TIMEOUT_S)


async def answer(local: LocalGateway, **fields: Any) -> list[pb.GenerateResponse]:
    """Return all chunks of an answer."""
    return [chunk async for chunk in generate(local, **fields)]


async def refused(local: LocalGateway, **fields: Any) -> grpc.aio.AioRpcError:
    """Return what ended a request; chunks that came before do not matter."""
    try:
        await answer(local, **fields)
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the call ended well")


def token_ids(chunks: list[pb.GenerateResponse]) -> list[int]:
    return [token for chunk in chunks for token in chunk.token_ids]


def plain_answer(new_tokens: int = 24) -> list[int]:
    """Return what the target alone would answer."""
    return RULE.continued(PROMPT, new_tokens)[len(PROMPT) :]
