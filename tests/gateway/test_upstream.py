"""Streams to the services behind the gateway: how they end, and which are opened again."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import grpc
import pytest

from gateway.experience import Experience
from gateway.policy import FixedPolicy
from gateway.round import Rounds
from gateway.sampling_params import parse_request
from gateway.upstream import DraftReplicas, DraftStream, TargetStream
from protos import serving, target_pb2, target_pb2_grpc
from protos.messages import DraftTree, Plan
from protos.serving import abort_retryable
from tests.gateway import scripted_drafter as drafters
from tests.gateway.local_gateway import MODEL, PROMPT, RULE, request
from tests.gateway.scripted_target import ScriptedTarget, honest
from tests.loopback import eventually

GENERATION = parse_request(request(), MODEL)
PROMPT_TREE = DraftTree.plain(len(PROMPT), PROMPT[-1])


@asynccontextmanager
async def target_stream(script=honest):
    """A stream to a scripted target, not opened yet, and a way to kill the target."""
    target = ScriptedTarget(RULE, script)
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(target.serving())
        async with serving.open_channel(address) as channel:
            yield TargetStream(target_pb2_grpc.TargetServiceStub(channel), "s"), target, stack


async def test_a_session_at_the_target_is_opened_verified_and_closed():
    async with target_stream() as (stream, target, _):
        await stream.open(GENERATION, 0, expect_taps=True)
        first = await stream.verdict()
        tokens = [*PROMPT, *first.tokens]
        tree = drafters.right(RULE, tokens)
        await stream.verify(tree)
        second = await stream.verdict()
        assert target.num_sessions == 1
        stream.cancel()
        await eventually(lambda: target.num_sessions == 0)

    assert first == RULE.verdict(PROMPT, PROMPT_TREE)
    assert second == RULE.verdict(tokens, tree)
    assert target.opened[0].session_id == "s"


@pytest.mark.parametrize("number", [0, 2])
async def test_what_the_target_says_when_it_refuses_is_raised(number):
    """At the beginning or later, whoever notices first: the writer or the reader."""

    async def refusing(count, verdict, context):
        if count == number:
            await abort_retryable(context, "the queue is full")
        return verdict.to_proto()

    async with target_stream(refusing) as (stream, _, _):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await decode(stream)

    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refused.value.details() == "the queue is full"


async def decode(stream):
    """Decode plainly for ever."""
    await stream.open(GENERATION, 0, expect_taps=True)
    tokens = [*PROMPT, *(await stream.verdict()).tokens]
    while True:
        await stream.verify(DraftTree.plain(len(tokens), tokens[-1]))
        tokens += (await stream.verdict()).tokens


class EndingTarget(ScriptedTarget):
    """Opens a session, and ends it."""

    async def Decode(self, requests, context):  # noqa: N802
        await anext(aiter(requests))
        yield target_pb2.DecodeResponse(opened=target_pb2.SessionOpened())


async def test_a_target_that_ended_the_session_is_an_error_for_writer_and_reader():
    """Even if it calls that a success."""
    async with EndingTarget(RULE).serving() as address, serving.open_channel(address) as channel:
        stream = TargetStream(target_pb2_grpc.TargetServiceStub(channel), "s")
        await stream.open(GENERATION, 0, expect_taps=True)
        for attempt in (stream.verdict, lambda: stream.verify(PROMPT_TREE)):
            with pytest.raises(grpc.aio.AioRpcError, match="the target ended the session") as error:
                await attempt()
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_target_that_dies_is_an_error_for_writer_and_reader():
    async with target_stream() as (stream, _, server):
        await stream.open(GENERATION, 0, expect_taps=True)
        await stream.verdict()
        await server.aclose()
        for attempt in (stream.verdict, lambda: stream.verify(PROMPT_TREE)):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await attempt()
            assert error.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_gateway_needs_a_draft_service():
    with pytest.raises(ValueError, match="at least one draft service is needed, got none"):
        DraftReplicas([])


class NotingRounds(Rounds):
    """Note the trees that come."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.lengths = []

    def on_tree(self, name, tree):
        super().on_tree(name, tree)
        self.lengths.append(tree.committed_len)


def noting_rounds():
    return NotingRounds(
        PROMPT,
        FixedPolicy(Plan(3), Experience()),
        vocab_size=RULE.vocab_size,
        max_new_tokens=1000,
        deadline_s=60.0,
    )


class Follower:
    """Drafts for rounds that the test plays, from draft services with these scripts."""

    def __init__(self, target, services, rounds):
        self.target, self.services, self.rounds = target, services, rounds
        self.tokens = list(PROMPT)
        self.news = 0

    def hear(self):
        self.news += 1

    def commit(self):
        """Commit the next token, as the session and as the target that drafters follow."""
        tree = DraftTree.plain(len(self.tokens), self.tokens[-1])
        verdict = RULE.verdict(self.tokens, tree)
        if len(self.tokens) > len(PROMPT):
            assert self.rounds.poll(1e9, 100) is not None
        self.rounds.on_verdict(verdict, 0.0)
        self.tokens += verdict.tokens
        self.target.commits["s"].put_nowait(list(self.tokens))

    async def drafted(self):
        """Wait for the draft for the tokens of now, and return what the rounds make of it."""
        await eventually(lambda: len(self.tokens) in self.rounds.lengths)
        return self.rounds.poll(0.0, 100)

    @property
    def num_opened(self):
        return [len(service.opened) for service in self.services]


@asynccontextmanager
async def following(*scripts):
    """Follow a session at draft services, one for each script."""
    target = ScriptedTarget(RULE)
    services = [drafters.ScriptedDrafter(script, target) for script in scripts]
    rounds = noting_rounds()
    follower = Follower(target, services, rounds)
    async with AsyncExitStack() as stack:
        channels = []
        for service in services:
            address = await stack.enter_async_context(service.serving())
            channels.append(await stack.enter_async_context(serving.open_channel(address)))
        stream = DraftStream(DraftReplicas(channels), "s", "", GENERATION, rounds, follower.hear)
        follower.stream, follower.running = stream, stream.following
        yield follower
        stream.cancel()
        with suppress(asyncio.CancelledError):
            await follower.running
        await eventually(lambda: all(service.num_sessions == 0 for service in services))


async def test_drafts_reach_the_rounds_with_news_of_them():
    async with following(drafters.drafting(drafters.right)) as follower:
        await eventually(lambda: follower.news == 1)
        assert follower.rounds.statistics.drafter_id == "scripted"
        follower.commit()
        assert await follower.drafted() == drafters.right(RULE, follower.tokens)
        assert follower.news == 2


async def test_a_drafter_is_told_of_every_plan_or_of_the_newest():
    """Plans follow the stream's opening one after another; the last that arrives is the last."""
    async with following(drafters.silent) as follower:
        await eventually(lambda: follower.num_opened == [1])
        for steps in (2, 3, 0, 7):
            follower.stream.ask(Plan(steps))
        (service,) = follower.services
        await eventually(lambda: [plan.steps for plan in service.plans][-1:] == [7])
        assert set(service.plans) <= {Plan(steps) for steps in (2, 3, 0, 7)}


FINAL = ("FAILED_PRECONDITION", "NOT_FOUND", "INVALID_ARGUMENT", "UNIMPLEMENTED")


@pytest.mark.parametrize("name", FINAL)
async def test_a_refusal_that_would_come_again_is_final(name):
    async with following(drafters.refusing(grpc.StatusCode[name], "no")) as follower:
        await follower.running

        assert follower.num_opened == [1]
        assert follower.rounds.statistics.trouble == f"{name}: no"


@pytest.mark.parametrize("name", FINAL)
async def test_a_drafter_that_one_replica_lacks_is_found_at_another(name):
    """They need not have been given the same ones."""
    refusing = drafters.refusing(grpc.StatusCode[name], "no")
    async with following(refusing, drafters.drafting(drafters.right)) as follower:
        await eventually(lambda: follower.num_opened == [1, 1])
        follower.commit()
        assert await follower.drafted() == drafters.right(RULE, follower.tokens)


async def test_a_drafter_that_all_replicas_refuse_is_asked_for_once_each():
    refusing = drafters.refusing(grpc.StatusCode.NOT_FOUND, "no")
    async with following(refusing, refusing, refusing) as follower:
        await follower.running

        assert follower.num_opened == [1, 1, 1]
        assert follower.rounds.statistics.trouble == "NOT_FOUND: no"


AGAIN = {
    "unavailable": drafters.refusing(grpc.StatusCode.UNAVAILABLE, "no"),
    "exhausted": drafters.refusing(grpc.StatusCode.RESOURCE_EXHAUSTED, "no"),
    "internal": drafters.refusing(grpc.StatusCode.INTERNAL, "no"),
    "leaving": drafters.leaving,
    "babbling": drafters.babbling,
    "empty": drafters.empty,
}


@pytest.mark.parametrize("script", AGAIN.values(), ids=AGAIN)
async def test_anything_else_is_tried_again_at_the_next_replica(script):
    async with following(script, drafters.drafting(drafters.right)) as follower:
        await eventually(lambda: follower.num_opened[0] == 1)
        follower.commit()
        await eventually(lambda: follower.num_opened == [1, 1])
        follower.commit()
        assert await follower.drafted() == drafters.right(RULE, follower.tokens)

        assert not follower.running.done()


async def test_a_session_is_opened_again_as_it_stands_by_then():
    """The drafter need not be told later what was committed before."""
    leave = asyncio.Event()

    async def staying(rule, commits, context):
        yield drafters.OPENED
        await leave.wait()

    async with following(staying, drafters.silent) as follower:
        await eventually(lambda: follower.news == 1)
        follower.commit()
        follower.commit()
        leave.set()
        await eventually(lambda: follower.num_opened == [1, 1])

        (before,), (after,) = (service.opened for service in follower.services)
        assert list(before.token_ids) == PROMPT
        assert list(after.token_ids) == follower.tokens
        assert len(follower.tokens) == len(PROMPT) + 2
        assert before.prompt_len == after.prompt_len == len(PROMPT)
        assert before.session_id == after.session_id == "s"


async def test_tries_go_on_for_as_long_as_the_session_does():
    script = drafters.refusing(grpc.StatusCode.UNAVAILABLE, "no")
    async with following(script) as follower:
        await eventually(lambda: follower.num_opened[0] >= 4)

        assert not follower.running.done()


async def test_a_stream_whose_call_fails_as_it_is_cancelled_is_not_opened_again():
    """The failure hides the cancellation: a ghost would hold a session of the drafter for ever."""

    class Failing(DraftStream):
        opened = 0

        async def _follow_once(self):
            self.opened += 1
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            return "RESOURCE_EXHAUSTED: all sessions are in use", False

    rounds = noting_rounds()
    stream = Failing(
        DraftReplicas([grpc.aio.insecure_channel("x")]), "s", "", GENERATION, rounds, int
    )
    await asyncio.sleep(0)
    running = stream.following
    stream.cancel()
    await asyncio.wait([running], timeout=5)
    assert running.done()
    assert stream.opened == 1
