"""Decode over a socket: sessions answer as the engine does, and whatever ends is given back."""

import asyncio
import random

import grpc
import pytest

from protos import serving, target_pb2_grpc
from protos import target_pb2 as pb
from protos.messages import SamplingParams
from tests.target_service.played_session import PlayedSession
from tests.target_service.served_target import (
    GREEDY,
    MAX_CONTEXT_LEN,
    ClientSession,
    open_request,
    retry_delay_s,
    serve,
    tree_of,
)
from tests.target_service.waiting import until

PROMPT = list(range(40, 80))


async def test_get_target_tells_the_facts_and_the_load(target, tiny):
    session = await target.open(open_request()).begin()
    told = await target.stub.GetTarget(pb.GetTargetRequest())
    assert (told.model_name, told.weights, told.device) == ("tiny", "float32", "cpu")
    assert (told.num_layers, told.max_context_len, told.max_tree_nodes) == (4, 300, 64)
    assert told.pairing == target.pairing.to_proto()
    assert told.load == pb.TargetLoad(
        sessions=1,
        kv_tokens_reserved=64,
        kv_tokens_total=4096,
        steps=1,
        prompt_rows=2,
        root_rows=1,
        committed_tokens=1,
        prompt_tokens=3,
    )
    await session.finish()


@pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(temperature=1.0, seed=2**63 + 5)])
async def test_a_session_over_the_wire_is_the_session_of_the_engine(target, tiny, sampling):
    expected = PlayedSession(tiny, PROMPT, sampling, chunk_len=7).decode(30)
    session = await target.open(open_request(PROMPT, sampling=sampling)).begin()
    while len(session.answer) < 25:
        done = len(session.answer)
        right = expected.tokens[done : done + 3]
        verdict = await session.verify([*right, 9], [0, 1, 2, 0])
        assert verdict.committed_len == len(PROMPT) + done
        assert verdict.path == (1, 2, 3)
        assert list(verdict.logprobs) == expected.logprobs[done : done + 4]
    assert session.answer == expected.tokens[: len(session.answer)]
    assert await session.finish() is grpc.StatusCode.OK


async def test_many_sessions_at_once_answer_as_each_alone(target, tiny):
    prompts = [[*PROMPT[i:], i] for i in range(8)]
    sessions = [
        target.open(open_request(prompt, session_id=f"s{i}")) for i, prompt in enumerate(prompts)
    ]
    await asyncio.gather(*(session.begin() for session in sessions))
    answers = await asyncio.gather(*(session.decode(12) for session in sessions))
    alone = [PlayedSession(tiny, prompt, GREEDY, chunk_len=64).decode(12) for prompt in prompts]
    assert answers == [told.tokens for told in alone]
    assert [await session.finish() for session in sessions] == [grpc.StatusCode.OK] * 8


async def test_a_stale_tree_is_dropped_without_a_word(target):
    """Even one that is wrong in every other way, too: nobody waits for it any more."""
    session = await target.open(open_request()).begin()
    await session.verify()
    for stale in ({"committed_len": 4}, {"committed_len": 3, "tokens": [258]}):
        await session.call.write(tree_of(session, **stale))
    verdict = await session.verify()
    assert verdict.committed_len == 5
    assert await session.finish() is grpc.StatusCode.OK


async def test_a_step_that_fails_is_told_to_its_session_only(target, monkeypatch):
    good = await target.open(open_request(session_id="good")).begin()
    bad = await target.open(open_request(session_id="bad")).begin()
    step = target.engine.step

    def failing(batch):
        if any(rows.session.session_id == "bad" for rows in batch):
            raise RuntimeError("out of memory")
        return step(batch)

    monkeypatch.setattr(target.engine, "step", failing)
    await bad.send()
    assert await bad.refusal() == (grpc.StatusCode.INTERNAL, "the step failed: out of memory")
    await good.decode(4)
    await good.finish()


class TestRuns:
    """A session that runs is told what it would be told if it asked for every token."""

    @pytest.mark.parametrize("sampling", [GREEDY, SamplingParams(temperature=1.0, seed=5)])
    async def test_a_run_goes_on_until_its_length(self, target, tiny, sampling):
        expected = PlayedSession(tiny, PROMPT, sampling, chunk_len=7).decode(30)
        session = await target.open(open_request(PROMPT, sampling=sampling)).begin()
        await session.run(len(PROMPT) + 20)
        while len(session.answer) < 20:
            await session.verdict()
        await target.silent()
        await session.verify(expected.tokens[20:22], [0, 1])
        assert session.answer == expected.tokens[:23]
        assert target.loop.totals.root_rows == 21
        await session.finish()

    async def test_a_newer_run_pauses_or_prolongs_it(self, target):
        session = await target.open(open_request(PROMPT)).begin()
        target.engine.gate.clear()
        for until_len in (len(PROMPT) + 40, 0, len(PROMPT) + 5):
            await session.run(until_len)
        target.engine.gate.set()
        for _ in range(4):
            await session.verdict()
        await target.silent()
        assert len(session.answer) == 5
        await session.finish()

    async def test_it_ends_with_a_stop_token_and_the_most_new_tokens(self, target, tiny):
        expected = PlayedSession(tiny, PROMPT, GREEDY, chunk_len=7).decode(12).tokens
        stop = next(token for token in expected[3:] if token not in expected[:3])
        lengths = {"stop": expected.index(stop) + 1, "most": 6}
        for name, fields in {
            "stop": {"stop_token_ids": [stop]},
            "most": {"max_new_tokens": 6},
        }.items():
            session = await target.open(open_request(PROMPT, session_id=name, **fields)).begin()
            await session.run(1000)
            while len(session.answer) < lengths[name]:
                await session.verdict()
            await target.silent()
            assert session.answer == expected[: lengths[name]]
            assert await session.finish() is grpc.StatusCode.OK

    async def test_trees_are_dropped_while_it_runs(self, target):
        session = await target.open(open_request(PROMPT)).begin()
        target.engine.gate.clear()
        await session.run(len(PROMPT) + 3)
        await session.send([1, 2], [0, 0])
        target.engine.gate.set()
        await session.verdict()
        await session.verdict()
        await target.silent()
        assert len(session.answer) == 3
        await session.finish()


class TestLimits:
    async def test_an_id_in_use_is_refused_and_free_again_afterwards(self, target):
        first = await target.open(open_request(session_id="same")).begin()
        second = await target.open(open_request(session_id="same")).send_first()
        code, details = await second.refusal()
        assert code is grpc.StatusCode.ALREADY_EXISTS
        assert details == "session_id 'same' is in use"
        await first.decode(3)
        await first.finish()
        await until(lambda: not target.scheduler.num_sessions)
        third = await target.open(open_request(session_id="same")).begin()
        await third.finish()

    async def test_a_full_target_says_when_to_come_back(self, tiny):
        async with serve(tiny, max_sessions=1) as target:
            first = await target.open(open_request(session_id="first")).begin()
            late = await target.open(open_request(session_id="late")).send_first()
            code, details = await late.refusal()
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert details == "1 of 1 sessions are open"
            assert await retry_delay_s(late.call) > 0
            await first.finish()
            await target.drained()
            await (await target.open(open_request(session_id="late")).begin()).finish()
            await target.drained()

    async def test_the_longest_session_fits(self, target):
        prompt = [7] * (MAX_CONTEXT_LEN - 1)
        session = await target.open(open_request(prompt, max_new_tokens=1)).begin()
        assert len(session.answer) == 1
        await session.finish()


class TestEnds:
    """However a client goes, at whatever moment, nothing stays behind (`target` checks)."""

    @pytest.mark.parametrize("moment", ["opening", "prefill", "idle", "verify"])
    @pytest.mark.parametrize("way", ["cancel", "half-close", "connection"])
    async def test_everything_is_given_back(self, target, moment, way):
        async with serving.open_channel(target.address) as channel:
            call = target_pb2_grpc.TargetServiceStub(channel).Decode()
            session = ClientSession(call, [open_request(PROMPT)])
            await self.reach(moment, session, target)
            if way == "cancel":
                call.cancel()
            elif way == "half-close":
                assert await session.finish() is grpc.StatusCode.OK
            else:
                await channel.close()
            await target.drained()

    async def reach(self, moment, session, target) -> None:
        """Bring a session to a moment; while it prefills or verifies its step runs on."""
        if moment in ("opening", "prefill"):
            target.engine.gate.clear()
            await session.send_first()
            if moment == "prefill":
                await asyncio.to_thread(target.engine.started.wait, 30)
            return
        await session.begin()
        if moment == "verify":
            target.engine.gate.clear()
            target.engine.started.clear()
            await session.send([1, 2], [0, 0])
            await asyncio.to_thread(target.engine.started.wait, 30)

    async def test_a_hundred_random_cancels_leave_nothing(self, target):
        rng = random.Random(0)

        async def give_up(number: int) -> None:
            call = target.stub.Decode()
            session = ClientSession(call, [open_request(PROMPT, session_id=f"s{number}")])
            decoding = asyncio.create_task(self.decode(session))
            await asyncio.sleep(rng.random() * 0.05)
            call.cancel()
            # A write that waits for its turn does not notice that its call is cancelled.
            decoding.cancel()
            await asyncio.gather(decoding, return_exceptions=True)

        await asyncio.gather(*(give_up(number) for number in range(100)))

    async def decode(self, session: ClientSession) -> None:
        await session.begin()
        await session.decode(50)
