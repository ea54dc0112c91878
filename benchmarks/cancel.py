"""How long after a client is gone both services hold nothing of its session any more.

A request is given up after a random number of chunks, before the first included, sometimes by
cancelling it, sometimes by closing the channel under it. `python -m benchmarks.cancel` prints JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import AsyncIterator

from protos import draft_pb2, draft_pb2_grpc, serving, target_pb2, target_pb2_grpc
from protos import gateway_pb2 as pb
from slipstream.client import AsyncClient, Request
from slipstream.model_cache import resolve_model
from slipstream.stack import Addresses, LocalStack, StackConfig

_REQUESTS = 60
_PATIENCE = 10_000
_LONG_PROMPT = "Say it again and again. " * 60


class Holdings:
    """Asks both services what they hold."""

    def __init__(self, addresses: Addresses) -> None:
        self._channels = [serving.open_channel(addresses.target)]
        self._channels.append(serving.open_channel(addresses.draft))
        self._target = target_pb2_grpc.TargetServiceStub(self._channels[0])
        self._draft = draft_pb2_grpc.DraftServiceStub(self._channels[1])

    async def close(self) -> None:
        """Close the channels."""
        for channel in self._channels:
            await channel.close()

    async def any(self) -> bool:
        """Whether a session, a KV slot or a subscription is left."""
        target, draft = await asyncio.gather(
            self._target.GetTarget(target_pb2.GetTargetRequest()),
            self._draft.ListDrafters(draft_pb2.ListDraftersRequest()),
        )
        load = target.load
        held = load.sessions + load.kv_tokens_reserved + load.tap_subscriptions
        return bool(held + draft.load.sessions + draft.load.tap_subscriptions)


async def give_up_once(addresses: Addresses, holdings: Holdings, chunks: int) -> float:
    """Give a request up after some chunks; return the seconds until all is freed."""
    client = AsyncClient(addresses.gateway)
    request = Request(chat=_LONG_PROMPT, stopping={"max_new_tokens": 400, "ignore_eos": True})
    stream = client.stream(request)
    taking = asyncio.create_task(_take(stream, chunks))
    if chunks:
        await taking
    else:
        await _until(holdings, held=True)
    gone = time.perf_counter()
    taking.cancel()
    await client.close()
    await _until(holdings, held=False)
    return time.perf_counter() - gone


async def _until(holdings: Holdings, *, held: bool) -> None:
    """Ask again and again, each time as soon as the services have answered."""
    for _ in range(_PATIENCE):
        if await holdings.any() is held:
            return
    raise RuntimeError(f"after {_PATIENCE} questions the services do not say {held}")


async def _take(stream: AsyncIterator[pb.GenerateResponse], chunks: int) -> None:
    received = 0
    async for _ in stream:
        received += 1
        if received == chunks:
            return


async def measure(addresses: Addresses) -> list[float]:
    """Return the seconds it took, request by request."""
    holdings, choices = Holdings(addresses), random.Random(0)
    times = [
        await give_up_once(addresses, holdings, choices.choice([0, 1, 3, 8]))
        for _ in range(_REQUESTS)
    ]
    await holdings.close()
    return times


def main() -> None:
    """Measure on a stack of its own and print the result."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    config = StackConfig(resolve_model("smollm2-135m"), Addresses.free())
    with LocalStack(config) as stack:
        times_ms = [1000 * seconds for seconds in asyncio.run(measure(stack.addresses))]
    report = {
        "what": "from a client's end to nothing held in target and draft service",
        "median_ms": round(statistics.median(times_ms), 1),
        "p90_ms": round(statistics.quantiles(times_ms, n=10)[-1], 1),
        "max_ms": round(max(times_ms), 1),
        "requests": len(times_ms),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
