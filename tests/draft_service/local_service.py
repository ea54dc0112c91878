"""A draft service on a socket inside the test, and a client that speaks to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import grpc

from draft_service.admin import DraftAdminServicer
from draft_service.draft_loop import DraftLoop
from draft_service.load import Load
from draft_service.loader import DrafterSpec
from draft_service.registry import Registry
from draft_service.server import DraftServicer
from draft_service.standings import Standings
from draft_service.tap_reader import TapReader
from draft_service.upstream import Target
from protos import draft_admin_pb2_grpc, draft_pb2_grpc, serving, speculation_pb2
from protos import draft_pb2 as pb
from protos.pairing import Pairing
from tests.draft_service.scripted_target import (
    PAIRING,
    Script,
    ScriptedTarget,
    attached,
    frame,
)
from tests.loopback import eventually, listening

# The tokens repeat, so that prompt lookup knows how to go on: 3 4 1 2 ...
PROMPT = [1, 2, 3, 4, 1, 2]
PLAN = speculation_pb2.Plan(steps=3, top_k=1, draft_tokens=4)
PROMPT_FRAMES = (attached(), frame(0, PROMPT[1:]))
# A call that hangs must fail, not stop the tests.
TIMEOUT_S = 60


class LocalService:
    """A draft service, and the target it follows."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        target: ScriptedTarget,
        registry: Registry,
        standings: Standings,
        counters: Load,
        target_server: AsyncExitStack,
    ) -> None:
        self.stub = draft_pb2_grpc.DraftServiceStub(channel)
        self.admin = draft_admin_pb2_grpc.DraftAdminServiceStub(channel)
        self.target = target
        self.registry = registry
        self.standings = standings
        self.counters = counters
        self.kill_target = target_server.aclose

    async def listed(self) -> pb.ListDraftersResponse:
        """Return what the service says of its drafters."""
        return await self.stub.ListDrafters(pb.ListDraftersRequest())

    async def info(self, drafter_id: str) -> pb.DrafterInfo:
        """Return what it says of one of them."""
        (info,) = [one for one in (await self.listed()).drafters if one.drafter_id == drafter_id]
        return info

    async def load(self) -> tuple[int, int, int]:
        """Return sessions, tap subscriptions, and those that the target knows of."""
        listed = await self.listed()
        return listed.load.sessions, listed.load.tap_subscriptions, self.target.num_streams

    async def is_loaded(self, *load: int) -> bool:
        return await self.load() == load

    async def all_is_free(self) -> None:
        """Wait until nothing is held any more."""
        await eventually(lambda: self.is_loaded(0, 0, 0))
        await eventually(lambda: self.counters.kv_pages.used == 0)


@asynccontextmanager
async def drafting(
    script: Script,
    *drafters: str,
    attach: bool = True,
    max_sessions: int = 8,
    pairing: Pairing = PAIRING,
    kv_tokens: int = 4096,
    alarms: bool = True,
) -> AsyncIterator[LocalService]:
    """Yield a draft service with these drafters that follows a scripted target."""
    target = ScriptedTarget(script, pairing)
    specs = [DrafterSpec.parse(text) for text in drafters or ("ngram",)]
    registry = Registry(specs, kv_tokens)
    async with AsyncExitStack() as stack:
        target_server = await stack.enter_async_context(AsyncExitStack())
        target_address = await target_server.enter_async_context(target.serving())
        channel = await stack.enter_async_context(serving.open_channel(target_address))
        upstream = Target(channel, target_address)
        if attach:
            await upstream.attach(registry, None)
        standings = Standings(registry, alarms=alarms)
        drafts = DraftLoop(Load(registry), standings)
        stack.callback(drafts.stop)
        taps = TapReader(upstream, drafts, standings)
        servicer = DraftServicer(registry, standings, taps, drafts.load, max_sessions)
        admin = DraftAdminServicer(registry, standings)

        def add(server: Any) -> None:
            draft_pb2_grpc.add_DraftServiceServicer_to_server(servicer, server)
            draft_admin_pb2_grpc.add_DraftAdminServiceServicer_to_server(admin, server)

        address = await stack.enter_async_context(listening(add))
        client = await stack.enter_async_context(serving.open_channel(address))
        yield LocalService(client, target, registry, standings, drafts.load, target_server)


def opening(**fields: Any) -> pb.DraftRequest:
    """Return the request that opens a session."""
    given = {"session_id": "s", "token_ids": PROMPT, "plan": PLAN} | fields
    return pb.DraftRequest(open=pb.OpenDraft(**given))


async def open_session(service: LocalService, **fields: Any) -> Any:
    """Open a session; return its call after `opened`."""
    call = service.stub.Draft(timeout=TIMEOUT_S)
    await call.write(opening(**fields))
    assert (await call.read()).WhichOneof("message") == "opened"
    return call


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    """Return what ended a call; trees that came before do not matter."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the call ended well")


async def refused_session(service: LocalService, *requests: pb.DraftRequest) -> Any:
    """Return what ended a session of these requests."""
    call = service.stub.Draft(timeout=TIMEOUT_S)
    # The refusal may be there before everything was written.
    with suppress(asyncio.InvalidStateError):
        for request in requests:
            await call.write(request)
        await call.done_writing()
    return await refusal(call)


async def ended_session(service: LocalService) -> grpc.aio.AioRpcError:
    """Return what ended a session by itself; `opened` is lost if that overtakes it."""
    call = service.stub.Draft(timeout=TIMEOUT_S)
    await call.write(opening())
    return await refusal(call)
