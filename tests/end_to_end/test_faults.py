"""Whatever happens to a drafter, the answer goes on, and no round waits beyond its deadline."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import grpc
import pytest

from protos import gateway_pb2 as pb
from slipstream.client import Client, Completion, Request
from slipstream.stack import Addresses, LocalStack, StackConfig
from tests.end_to_end import services
from tests.end_to_end.delay_proxy import delayed

DEADLINE_S = 0.15
NEW_TOKENS = 150
FEW_TOKENS = (40, 41, 42)
# What scheduling noise may add to a gap. A round that really waits for a dead drafter waits for
# seconds, or for ever.
NOISE_S = 0.5


@pytest.fixture(scope="module")
def stack(tiny_target) -> Iterator[LocalStack]:
    """A stack of its own: its drafter is about to suffer."""
    arguments = ("--draft-deadline-ms", str(DEADLINE_S * 1000))
    with LocalStack(StackConfig(tiny_target, Addresses.free(), gateway_args=arguments)) as stack:
        yield stack


@dataclass(frozen=True)
class Timed:
    """An answer and when its chunks came."""

    completion: Completion
    arrivals: list[float]
    chunks: list[pb.GenerateResponse]

    @property
    def longest_gap_s(self) -> float:
        pairs = zip(self.arrivals, self.arrivals[1:], strict=False)
        return max(later - earlier for earlier, later in pairs)

    @property
    def longest_step_s(self) -> float:
        """The slowest forward with its wait in the target's queue."""
        timings = [chunk.timings.verify for chunk in self.chunks[1:]]
        return max(t.queue_us + t.forward_us + t.accept_us for t in timings) / 1e6


def request(mode: str) -> Request:
    return Request(
        chat="again and again and again",
        # Of so few words every text repeats itself, so that prompt lookup drafts.
        sampling={"temperature": 0.0, "logit_bias": dict.fromkeys(FEW_TOKENS, 100.0)},
        stopping={"max_new_tokens": NEW_TOKENS, "ignore_eos": True},
        mode=mode,
    )


def answer(gateway: str, mode: str, after: Callable[[int], object] = int) -> Timed:
    """Answer; `after` is called with the number of chunks so far."""
    arrivals, chunks = [], []
    with Client(gateway) as client:
        for chunk in client.stream(request(mode), timeout_s=120):
            arrivals.append(time.monotonic())
            chunks.append(chunk)
            after(len(chunks))
    return Timed(Completion.of(chunks), arrivals, chunks)


def check(plain: Timed, hurt: Timed) -> None:
    """Same text, nothing lost, and no gap longer than the deadline and one step."""
    assert hurt.completion.token_ids == plain.completion.token_ids
    assert hurt.completion.logprobs == plain.completion.logprobs
    limit_s = DEADLINE_S + max(plain.longest_step_s, hurt.longest_step_s) + NOISE_S
    assert hurt.longest_gap_s <= limit_s


def drafts_again(gateway: str) -> bool:
    """Whether an answer has accepted drafts within a few tries."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if answer(gateway, "fixed").completion.finish.speculation.drafted:
            return True
    return False


def test_a_killed_drafter_costs_no_answer_and_comes_back(stack):
    """kill -9 mid-answer; after a restart the same gateway drafts again."""
    plain = answer(stack.addresses.gateway, "off")
    draft = stack.processes["draft"]

    hurt = answer(stack.addresses.gateway, "fixed", lambda n: draft.kill() if n == 5 else None)

    check(plain, hurt)
    assert "UNAVAILABLE" in hurt.completion.finish.speculation.drafter_trouble
    draft.wait(10)
    stack.spawn("draft")
    stack.wait_healthy("draft")
    assert drafts_again(stack.addresses.gateway)


def test_a_frozen_drafter_costs_no_answer_and_comes_back(stack):
    """SIGSTOP: the connection stays up and silent. It is waited for ever more rarely."""
    plain = answer(stack.addresses.gateway, "off")
    draft = stack.processes["draft"]

    def freeze(chunks: int) -> None:
        if chunks == 5:
            os.kill(draft.pid, signal.SIGSTOP)

    try:
        hurt = answer(stack.addresses.gateway, "fixed", freeze)
    finally:
        os.kill(draft.pid, signal.SIGCONT)

    check(plain, hurt)
    stats = hurt.completion.finish.speculation
    assert "no draft within" in stats.drafter_trouble
    waits = sum(chunk.timings.round_us > DEADLINE_S * 1e6 for chunk in hurt.chunks[1:])
    assert waits < stats.missed / 4
    assert drafts_again(stack.addresses.gateway)


@pytest.mark.parametrize("mode", ["fixed", "auto"])
def test_a_slow_network_to_the_drafter_costs_no_answer(stack, tiny_target, mode):
    """200 ms each way: every draft is late."""
    plain = answer(stack.addresses.gateway, "off")
    addresses = stack.addresses

    with (
        delayed(addresses.draft, 0.2) as slow,
        services.gateway(
            tiny_target, addresses.target, slow, deadline_ms=int(DEADLINE_S * 1000)
        ) as gateway,
    ):
        hurt = answer(gateway, mode)

    check(plain, hurt)
    stats = hurt.completion.finish.speculation
    assert stats.missed > 0 if mode == "fixed" else stats.missed < 10


@pytest.mark.parametrize("mode", ["fixed", "auto"])
def test_no_drafter_at_all_is_plain_decoding(stack, tiny_target, mode):
    """A gateway whose draft service does not exist answers all the same."""
    plain = answer(stack.addresses.gateway, "off")

    nowhere = Addresses.free().draft
    with services.gateway(
        tiny_target, stack.addresses.target, nowhere, deadline_ms=5000
    ) as gateway:
        hurt = answer(gateway, mode)

    check(plain, hurt)
    assert hurt.completion.finish.speculation.rounds == NEW_TOKENS - 1


def test_a_killed_target_is_said_clearly(tiny_target):
    """The client gets UNAVAILABLE with a reason, at once, and the gateway lives on."""
    with LocalStack(StackConfig(tiny_target, Addresses.free())) as stack:
        target = stack.processes["target"]
        with pytest.raises(grpc.RpcError) as failure:
            answer(stack.addresses.gateway, "auto", lambda n: target.kill() if n == 5 else None)
        target.wait(10)

        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "target is gone" in failure.value.details()
        stack.spawn("target")
        stack.wait_healthy("target")
        assert drafts_again(stack.addresses.gateway)
