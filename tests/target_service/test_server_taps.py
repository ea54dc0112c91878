"""StreamTaps and GetTarget over a socket: who fits gets every row, who does not is told why."""

import asyncio
import dataclasses

import grpc
import pytest
import torch

from protos import target_pb2 as pb
from protos import tensors
from tests.target_service.played_session import forward_chain
from tests.target_service.served_target import (
    TAP_LAYERS,
    ServedTarget,
    open_request,
    refusal_of,
    retry_delay_s,
    serve,
)
from tests.target_service.waiting import soon, until

PROMPT = list(range(40, 80))


class TapReader:
    """One StreamTaps call and what came of it."""

    def __init__(self, target: ServedTarget, session_id: str = "a", **facts: object) -> None:
        known_len = facts.pop("known_len", len(PROMPT))
        pairing = dataclasses.replace(target.pairing, **facts)
        self.call = target.stub.StreamTaps(
            pb.StreamTapsRequest(
                session_id=session_id, pairing=pairing.to_proto(), known_len=known_len
            )
        )
        self.tokens: list[int] = []
        self.rows: list[torch.Tensor] = []

    async def attach(self) -> pb.TapsAttached:
        response = await soon(self.call.read())
        assert response.WhichOneof("message") == "attached"
        self.next_row = response.attached.first_row
        return response.attached

    async def read_up_to(self, row: int) -> None:
        while self.next_row < row:
            frame = (await soon(self.call.read())).frame
            assert frame.base_len == self.next_row
            self.tokens += frame.tokens
            self.next_row += len(frame.tokens)
            if frame.HasField("taps"):
                self.rows.append(tensors.from_proto(frame.taps))

    async def refusal(self) -> tuple[grpc.StatusCode, str]:
        return await refusal_of(self.call)


@pytest.mark.parametrize("layers", [TAP_LAYERS, (4, 1), (2,)])
async def test_an_announced_reader_gets_every_row_paired_with_the_token_after_it(
    target, tiny, layers
):
    session = await target.open(open_request(PROMPT, expect_taps=True)).begin()
    reader = TapReader(target, tap_layers=layers)
    attached = await reader.attach()
    assert (attached.first_row, list(attached.tokens)) == (0, session.answer)
    for _ in range(5):
        await session.verify([1, 2], [0, 0])
    everything = PROMPT + session.answer
    await reader.read_up_to(len(everything) - 1)
    assert reader.tokens == everything[1:]
    expected = forward_chain(tiny, everything[:-1], layers)[1]
    torch.testing.assert_close(torch.cat(reader.rows), expected, atol=1e-5, rtol=0)
    await session.finish()
    assert await soon(reader.call.read()) is grpc.aio.EOF
    assert await reader.call.code() is grpc.StatusCode.OK


async def test_a_reader_may_come_first_and_may_want_tokens_only(target):
    reader = TapReader(target, tap_layers=(), hidden_size=0, tap_dtype=0)
    attaching = asyncio.create_task(reader.attach())
    await asyncio.sleep(0.02)
    session = await target.open(open_request(PROMPT, expect_taps=True)).begin()
    await attaching
    await reader.read_up_to(len(PROMPT))
    assert reader.tokens == [*PROMPT[1:], *session.answer]
    assert reader.rows == []
    await session.finish()


async def test_a_late_reader_begins_at_the_present(target):
    session = await target.open(open_request(PROMPT)).begin()
    await session.decode(5)
    reader = TapReader(target)
    attached = await reader.attach()
    assert (attached.first_row, list(attached.tokens)) == (len(PROMPT) + 4, session.answer)
    await session.verify()
    await reader.read_up_to(len(PROMPT) + 5)
    await session.finish()


@pytest.mark.parametrize(
    ("fact", "ours"),
    [
        ("protocol_version", 7),
        ("vocab_size", 260),
        ("hidden_size", 128),
        ("tap_dtype", 2),
        ("target_fingerprint", "fingerprint-of-another"),
        ("tokenizer_digest", "digest-of-another"),
    ],
)
async def test_a_reader_that_does_not_fit_is_told_both_values(target, fact, ours):
    """At attach, whether or not there is such a session."""
    code, details = await TapReader(target, **{fact: ours}).refusal()
    theirs = getattr(target.pairing, fact)
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert details == f"{fact}: the drafter has {ours!r}, the target has {theirs!r}"


async def test_layers_that_are_not_tapped_are_named(target):
    code, details = await TapReader(target, tap_layers=(1, 3)).refusal()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "reads layers [1, 3], the target taps [1, 2, 4]" in details
    assert "missing [3]" in details


async def test_all_that_does_not_fit_is_told_at_once(target):
    wrong = {"vocab_size": 1, "hidden_size": 2, "tap_layers": (9,)}
    _, details = await TapReader(target, **wrong).refusal()
    assert all(name in details for name in wrong)


async def test_facts_that_a_reader_leaves_empty_fit(target):
    session = await target.open(open_request(PROMPT, expect_taps=True)).begin()
    reader = TapReader(target, target_fingerprint="", tokenizer_digest="")
    await reader.attach()
    await session.finish()


async def test_a_session_that_never_opens_is_not_found(tiny):
    async with serve(tiny, attach_timeout_s=0.02) as target:
        answer = await TapReader(target, "no-such-session").refusal()
        assert answer == (grpc.StatusCode.NOT_FOUND, "no session 'no-such-session'")


async def test_tokens_that_do_not_exist_cannot_be_known(target):
    session = await target.open(open_request(PROMPT)).begin()
    code, details = await TapReader(target, known_len=99).refusal()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details == "known_len is 99, but only 41 tokens exist"
    await session.finish()


async def test_a_reader_that_falls_behind_is_dropped_and_its_session_goes_on(tiny):
    """The buffer is smaller than one row, so that every reader falls behind at once."""
    async with serve(tiny, tap_buffer=1) as target:
        session = await target.open(open_request(PROMPT)).begin()
        reader = TapReader(target)
        await reader.attach()
        await session.verify()
        code, details = await reader.refusal()
        assert (code, details) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "the subscriber is more than 1 bytes of taps behind",
        )
        assert await retry_delay_s(reader.call) > 0
        await session.decode(5)
        await until(lambda: not target.hub.num_subscriptions)
        await session.finish()
        await target.drained()


@pytest.mark.parametrize("attached", [True, False])
async def test_a_reader_that_goes_is_forgotten_and_its_session_goes_on(target, attached):
    session = await target.open(open_request(PROMPT, expect_taps=True)).begin()
    reader = TapReader(target, session_id="a" if attached else "later")
    if attached:
        await reader.attach()
        assert target.hub.num_subscriptions == 1
    reader.call.cancel()
    await until(lambda: not target.hub.num_subscriptions)
    await session.decode(4)
    await session.finish()


async def test_readers_are_part_of_the_load(target):
    session = await target.open(open_request(PROMPT, expect_taps=True)).begin()
    readers = [TapReader(target) for _ in range(3)]
    for reader in readers:
        await reader.attach()
    told = await target.stub.GetTarget(pb.GetTargetRequest())
    assert told.load.tap_subscriptions == 3
    await session.finish()
