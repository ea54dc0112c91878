"""Thirty-two sessions of all kinds at once, for a minute or (`make soak`) as long as it is told.

Every answer that finishes is, token for token and bit for bit, the one that was computed alone;
nothing is left behind, and no process grows.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from protos import draft_pb2, draft_pb2_grpc, serving, target_pb2, target_pb2_grpc
from slipstream.client import AsyncClient, Completion, Request
from slipstream.stack import Addresses, LocalStack, StackConfig
from tests.end_to_end.losslessness import DRAFTERS, PROMPTS, SAMPLINGS, answers, differing
from tests.tiny_models import write_tiny_eagle3

SECONDS = float(os.environ.get("SLIPSTREAM_SOAK_S", "60"))
WORKERS = 32
NEW_TOKENS = 32
# Too few for 32 sessions: they take pages from each other all the time.
KV_TOKENS = 24 * 64

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def stack(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    drafter = tmp_path_factory.mktemp("drafters") / "eagle3"
    write_tiny_eagle3(drafter, target_dir=smollm2, seed=2)
    config = StackConfig(
        smollm2,
        Addresses.free(),
        drafters=("ngram", f"eagle={drafter}"),
        target_args=("--kv-tokens", str(KV_TOKENS)),
        # A random drafter is never right.
        draft_args=("--no-alarms",),
        # A busy machine must not turn drafts into misses: they are to be verified.
        gateway_args=("--draft-deadline-ms", "500"),
    )
    with LocalStack(config) as running:
        yield running


def requests() -> list[Request]:
    """Short and long prompts, all ways of sampling."""
    long = " ".join(PROMPTS)
    prompts = (*PROMPTS[:4], long, long[: len(long) // 2], long + " Why?")
    return [
        Request(
            chat=prompt,
            sampling=SAMPLINGS[sampling],
            stopping={"max_new_tokens": NEW_TOKENS, "ignore_eos": True},
            mode="off",
        )
        for number, prompt in enumerate(prompts)
        for sampling in list(SAMPLINGS)[number % 2 :]
    ]


def in_some_way(request: Request, rng: random.Random) -> Request:
    """Return the request with a random drafter and tree shape, or none."""
    if rng.random() < 0.3:
        return request
    plan = {"steps": rng.randint(1, 8), "top_k": rng.randint(1, 3)}
    plan["draft_tokens"] = rng.randint(2, 24)
    return replace(request, mode="fixed", speculation={**plan, "drafter_id": rng.choice(DRAFTERS)})


class Soak:
    """Workers that ask one thing after the other, and sometimes change their minds."""

    def __init__(self, gateway: str, alone: list[Completion]) -> None:
        self.gateway = gateway
        self.alone = alone
        self.finished: Counter[str] = Counter()
        self.differing: list[str] = []

    async def work(self, number: int, until: float) -> None:
        rng = random.Random(number)
        async with AsyncClient(self.gateway) as client:
            while time.monotonic() < until:
                await self.ask(client, rng)

    async def ask(self, client: AsyncClient, rng: random.Random) -> None:
        which = rng.randrange(len(self.alone))
        request = in_some_way(requests()[which], rng)
        patience = rng.randint(0, 30) if rng.random() < 0.25 else None
        chunks = []
        async for chunk in client.stream(request, timeout_s=300):
            chunks.append(chunk)
            if len(chunks) == patience:
                self.finished["cancelled"] += 1
                return
        kind = str(request.speculation.get("drafter_id", "plain"))
        self.finished[kind] += 1
        if differing([self.alone[which]], [Completion.of(chunks)]):
            self.differing.append(f"{kind}: {request}")

    async def run(self, seconds: float, stack: LocalStack) -> list[dict[str, float]]:
        """Work so long; return what the processes take after half of it and in the end.

        Both times under load, and only then what was begun is ended: nobody idles in the middle.
        """
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as workers:
            for number in range(WORKERS):
                workers.create_task(self.work(number, until))
            taken = []
            for _ in range(2):
                await asyncio.sleep(seconds / 2)
                taken.append(resident_mib(stack))
        return taken


def resident_mib(stack: LocalStack) -> dict[str, float]:
    pages = {
        name: int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
        for name, process in stack.processes.items()
    }
    return {name: count * os.sysconf("SC_PAGE_SIZE") / 2**20 for name, count in pages.items()}


async def loads(stack: LocalStack) -> tuple[target_pb2.TargetLoad, draft_pb2.DraftLoad]:
    async with (
        serving.open_channel(stack.addresses.target) as target,
        serving.open_channel(stack.addresses.draft) as draft,
    ):
        facts = await target_pb2_grpc.TargetServiceStub(target).GetTarget(
            target_pb2.GetTargetRequest()
        )
        listed = await draft_pb2_grpc.DraftServiceStub(draft).ListDrafters(
            draft_pb2.ListDraftersRequest()
        )
        return facts.load, listed.load


async def nothing_is_held(stack: LocalStack) -> target_pb2.TargetLoad:
    """Wait until both services hold nothing; return what the target did."""
    for _ in range(1000):
        target, draft = await loads(stack)
        held = target.sessions + target.queued + target.kv_tokens_reserved
        if not held + target.tap_subscriptions + draft.sessions + draft.tap_subscriptions:
            return target
        await asyncio.sleep(0.01)
    raise AssertionError(f"still held: {target} {draft}")


def test_every_answer_is_that_of_a_session_alone_and_nothing_is_left(stack):
    asked = requests()
    alone = [answers(stack.addresses.gateway, [one])[0] for one in asked]
    soak = Soak(stack.addresses.gateway, alone)

    half, end = asyncio.run(soak.run(SECONDS, stack))
    target = asyncio.run(nothing_is_held(stack))
    grown = {name: mib - half[name] for name, mib in end.items()}
    print(f"{dict(soak.finished)}, {target.preemptions} preemptions, grown {grown} of {half} MiB")

    assert soak.differing == []
    assert {"plain", *DRAFTERS, "cancelled"} <= set(soak.finished)
    assert target.preemptions > 0
    assert target.cached_prompt_tokens > 0
    assert {name for name, mib in grown.items() if mib > 0.02 * half[name]} == set()
