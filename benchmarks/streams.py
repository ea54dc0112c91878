"""Answers as a client of many streams sees them: when each chunk came."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from protos import gateway_pb2 as pb
from slipstream.client import AsyncClient, Request


@dataclass
class Answer:
    """When each chunk of an answer came, how many tokens it had, and which.

    Seconds on our own clock.
    """

    started: float
    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish: pb.FinishInfo | None = None

    def tokens_between(self, first: float, last: float) -> int:
        """Return how many tokens came after one moment and not after another."""
        chunks = zip(self.times, self.tokens, strict=True)
        return sum(tokens for at, tokens in chunks if first < at <= last)

    @property
    def gaps(self) -> list[float]:
        """Seconds between chunks."""
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]


async def answer(client: AsyncClient, request: Request) -> Answer:
    """Take an answer and note when its chunks came."""
    taken = Answer(time.perf_counter())
    await take(client, request, taken)
    return taken


async def take(client: AsyncClient, request: Request, taken: Answer) -> None:
    """Note the chunks of an answer as they come: what came before a cancellation stays."""
    async for chunk in client.stream(request):
        taken.times.append(time.perf_counter())
        taken.tokens.append(len(chunk.token_ids))
        taken.token_ids += chunk.token_ids
        if chunk.HasField("finish"):
            taken.finish = chunk.finish


async def run_on(tasks: Sequence[asyncio.Task[None]], seconds: float) -> None:
    """Let tasks that do not end go on for a while. Raises what one of them ends with."""
    done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
    if done:
        await cancel(tasks)
        for task in done:
            task.result()


async def cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    """End tasks, wherever they stand."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
