"""A request that is given up leaves nothing behind, in any service."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

import grpc
import pytest

from protos import draft_pb2, draft_pb2_grpc, serving, target_pb2, target_pb2_grpc
from slipstream.client import AsyncClient, Request
from tests.end_to_end import services

STORM = 200
# More than can be said while a test waits: what was freed was given up, and had not just ended.
NEVER_SAID = 8000


async def held(stack) -> dict[str, int]:
    """Return what the services hold at this moment."""
    async with (
        serving.open_channel(stack.addresses.target) as to_target,
        serving.open_channel(stack.addresses.draft) as to_draft,
        AsyncClient(stack.addresses.gateway) as client,
    ):
        target = target_pb2_grpc.TargetServiceStub(to_target)
        draft = draft_pb2_grpc.DraftServiceStub(to_draft)
        load = (await target.GetTarget(target_pb2.GetTargetRequest())).load
        drafting = (await draft.ListDrafters(draft_pb2.ListDraftersRequest())).load
        return {
            "target sessions": load.sessions,
            "target queue": load.queued,
            "target KV slots": load.kv_tokens_reserved,
            "target subscriptions": load.tap_subscriptions,
            "draft sessions": drafting.sessions,
            "draft subscriptions": drafting.tap_subscriptions,
            "gateway requests": (await client.info()).running_requests,
        }


async def all_freed(stack, timeout_s: float = 10.0) -> dict[str, int]:
    """Wait until nothing is held; return what still is after the timeout."""
    deadline = time.monotonic() + timeout_s
    while True:
        left = {name: count for name, count in (await held(stack)).items() if count}
        if not left or time.monotonic() > deadline:
            return left
        await asyncio.sleep(0.02)


def long_request(drafter: str, mode: str = "fixed") -> Request:
    return Request(
        chat="say it again and again",
        stopping={"max_new_tokens": NEVER_SAID, "ignore_eos": True},
        speculation={"drafter_id": drafter},
        mode=mode,
    )


async def give_up(
    client: AsyncClient, drafter: str, mode: str, delay_s: float, chunks: int
) -> None:
    """Start a request; cancel it after a delay or after some chunks, whichever is first."""
    stream = client.stream(long_request(drafter, mode))

    async def read() -> None:
        for _ in range(chunks):
            await anext(stream)

    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await read()
    finally:
        await stream.aclose()


async def test_a_storm_of_cancels_leaves_nothing_behind(tiny_stack):
    """200 requests, each given up at a random moment: before, while and after its first chunks."""
    chance = random.Random(0)
    async with AsyncClient(tiny_stack.addresses.gateway) as client:
        for _ in range(STORM // 20):
            await asyncio.gather(
                *(
                    give_up(
                        client,
                        chance.choice(["ngram", "eagle"]),
                        chance.choice(["fixed", "auto"]),
                        chance.uniform(0.001, 0.4),
                        chance.randint(1, 8),
                    )
                    for _ in range(20)
                )
            )

        assert await all_freed(tiny_stack) == {}


async def test_a_running_request_does_hold_something(tiny_stack):
    """The negative control: what the storm test counts is not always zero."""
    async with AsyncClient(tiny_stack.addresses.gateway) as client:
        stream = client.stream(long_request("ngram"))
        for _ in range(3):
            await anext(stream)
        holding = await held(tiny_stack)
        await stream.aclose()

    assert all(count > 0 for name, count in holding.items() if name != "target queue")
    assert await all_freed(tiny_stack) == {}


async def test_a_client_that_vanishes_leaves_nothing_behind(tiny_stack):
    """Its channel is closed under a running answer, without a cancel."""
    client = AsyncClient(tiny_stack.addresses.gateway)
    stream = client.stream(long_request("eagle"))
    await anext(stream)

    await client.close()

    assert await all_freed(tiny_stack) == {}
    with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
        async for _ in stream:
            pass


async def test_a_deadline_ends_a_request(tiny_stack):
    """The call's own deadline is DEADLINE_EXCEEDED at the client, and frees everything."""
    async with AsyncClient(tiny_stack.addresses.gateway) as client:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await client.complete(long_request("ngram"), timeout_s=0.3)

    assert failure.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert await all_freed(tiny_stack) == {}


async def test_a_gateway_that_dies_leaves_nothing_behind(tiny_stack, tiny_target):
    """kill -9 of a gateway under running answers: both services free what it held."""
    addresses = tiny_stack.addresses
    with services.gateway(
        tiny_target, addresses.target, addresses.draft, deadline_ms=2000, kill=True
    ) as gateway:
        client = AsyncClient(gateway)
        streams = [client.stream(long_request(drafter)) for drafter in ("ngram", "eagle")]
        for stream in streams:
            await anext(stream)
        holding = await held(tiny_stack)

    assert holding["target sessions"] == holding["draft sessions"] == 2
    assert await all_freed(tiny_stack) == {}
    for stream in streams:
        with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
            async for _ in stream:
                pass
    await client.close()
