"""Decode over a socket: sessions answer, wrong ones are refused by name, all are given back."""

import asyncio
import random

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from protos import serving, target_pb2_grpc
from protos import speculation_pb2 as spec
from protos import target_pb2 as pb
from protos.messages import SamplingParams
from tests.target_service.played_session import PlayedSession
from tests.target_service.served_target import (
    GREEDY,
    MAX_CONTEXT_LEN,
    ClientSession,
    open_request,
    serve,
)
from tests.target_service.waiting import until

PROMPT = list(range(40, 80))
INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture
async def target(tiny):
    async with serve(tiny) as served:
        yield served
        await served.drained()


async def test_get_target_tells_the_facts_and_the_load(target, tiny):
    session = await target.open(open_request()).begin()
    told = await target.stub.GetTarget(pb.GetTargetRequest())
    assert (told.model_name, told.weights_dtype, told.device) == ("tiny", "float32", "cpu")
    assert (told.num_layers, told.max_context_len, told.max_tree_nodes) == (4, 300, 64)
    assert told.pairing == target.pairing.to_proto()
    assert told.load == pb.TargetLoad(
        sessions=1, kv_tokens_reserved=target.pool.num_reserved, kv_tokens_total=4096
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


def sampled(**fields: object) -> pb.DecodeRequest:
    request = open_request()
    request.open.sampling.MergeFrom(spec.SamplingParams(**fields))
    return request


TREE = pb.DecodeRequest(verify=spec.DraftTree(committed_len=1, tokens=[1], parents=[-1]))
OPENINGS = [
    (TREE, "the first message of Decode must be `open`"),
    (pb.DecodeRequest(), "the first message of Decode must be `open`"),
    (open_request(session_id=""), "session_id must be 1 to 64 characters"),
    (open_request(session_id="a b"), "got 'a b'"),
    (open_request(session_id="x" * 65), "session_id must be 1 to 64 characters"),
    (open_request([]), "a prompt needs at least one token, got none"),
    (open_request([1, 259]), "prompt_token_ids must be in [0, 259), got 259"),
    (open_request(max_new_tokens=0), "max_new_tokens must be in [1, 300], got 0"),
    (open_request(max_new_tokens=301), "max_new_tokens must be in [1, 300], got 301"),
    (open_request([1] * 251), "got 251 + max_new_tokens 50"),
    (sampled(temperature=-0.5), "temperature must be in [0, 100], got -0.5"),
    (sampled(temperature=float("nan")), "temperature must be in [0, 100], got nan"),
    (sampled(top_k=-2), "top_k must be in [-1, vocabulary], got -2"),
    (sampled(top_p=0), "top_p must be in (0, 1], got 0.0"),
    (sampled(min_p=1.5), "min_p must be in [0, 1], got 1.5"),
    (sampled(presence_penalty=3), "presence_penalty must be in [-2, 2], got 3.0"),
    (sampled(frequency_penalty=-3), "frequency_penalty must be in [-2, 2], got -3.0"),
    (sampled(repetition_penalty=0), "repetition_penalty must be in (0, 10], got 0.0"),
    (sampled(top_logprobs=21), "top_logprobs must be in [0, 20], got 21"),
    (sampled(logit_bias={3: 101}), "logit_bias[3] must be in [-100, 100], got 101.0"),
    (sampled(logit_bias={400: 1}), "logit_bias must be in [0, 259), got 400"),
    (sampled(suppressed_token_ids=[400]), "suppressed_token_ids must be in [0, 259), got 400"),
]


@pytest.mark.parametrize(("request_", "message"), OPENINGS, ids=[text for _, text in OPENINGS])
async def test_a_session_that_cannot_be_is_refused_by_name(target, request_, message):
    code, details = await (await target.open(request_).send_first()).refusal()
    assert code is INVALID
    assert message in details
    assert target.pool.num_reserved == 0


async def test_a_call_without_a_message_is_refused(target):
    call = target.stub.Decode()
    await call.done_writing()
    assert await ClientSession(call, []).refusal() == (INVALID, OPENINGS[0][1])


def tree_of(session: ClientSession, **fields: object) -> pb.DecodeRequest:
    """Return a plain tree, except for `fields`."""
    known = session.prompt + session.answer
    right = {"committed_len": len(known), "tokens": [known[-1]], "parents": [-1]}
    return pb.DecodeRequest(verify=spec.DraftTree(**(right | fields)))


TREES = [
    ({"committed_len": 99}, "tree.committed_len is 99, but only 4 tokens are committed"),
    ({"tokens": [258]}, "tree.tokens[0] must be the last committed token"),
    ({"tokens": []}, "a tree has 1 to 64 nodes, got 0"),
    ({"tokens": [1] * 65, "parents": [-1] * 65}, "a tree has 1 to 64 nodes, got 65"),
    ({"parents": [-1, 0]}, "got 1 tokens, 2 parents, 0 logprobs"),
    ({"logprobs": [0.0, 0.0]}, "got 1 tokens, 1 parents, 2 logprobs"),
    ({"parents": [0]}, "the root's parent must be -1, got 0"),
]


@pytest.mark.parametrize(("fields", "message"), TREES, ids=[text for _, text in TREES])
async def test_a_wrong_tree_ends_its_session_by_name(target, fields, message):
    session = await target.open(open_request()).begin()
    await session.call.write(tree_of(session, **fields))
    code, details = await session.refusal()
    assert code is INVALID
    assert message in details


@pytest.mark.parametrize(
    ("token", "parent", "message"),
    [
        (259, 0, "tree.tokens must be in [0, 259), got 259"),
        (5, -1, "the parent of node 1 must be in [0, 1), got -1"),
        (5, 1, "the parent of node 1 must be in [0, 1), got 1"),
    ],
)
async def test_a_wrong_node_ends_its_session_by_name(target, token, parent, message):
    session = await target.open(open_request()).begin()
    tokens, parents = [session.answer[-1], token], [-1, parent]
    await session.call.write(tree_of(session, tokens=tokens, parents=parents))
    assert await session.refusal() == (INVALID, message)


async def test_only_trees_follow_the_first_message(target):
    session = await target.open(open_request()).begin()
    await session.call.write(open_request(session_id="b"))
    code, details = await session.refusal()
    assert (code, details) == (INVALID, "every message of Decode after the first must be `verify`")


async def test_a_second_tree_before_the_verdict_is_refused(target):
    session = await target.open(open_request()).begin()
    target.engine.gate.clear()
    await session.send()
    await session.send()
    code, details = await session.refusal()
    assert (code, details) == (INVALID, "a tree for committed_len 4 is being verified")


async def test_no_tree_is_taken_after_the_last_token(target):
    session = await target.open(open_request(max_new_tokens=2)).begin()
    await session.verify()
    await session.send()
    assert await session.refusal() == (INVALID, "all 2 tokens of max_new_tokens are committed")


async def test_a_wrong_tree_hurts_no_other_session(target, tiny):
    other = await target.open(open_request(PROMPT, session_id="other")).begin()
    wrong = await target.open(open_request()).begin()
    await wrong.call.write(tree_of(wrong, committed_len=99))
    await wrong.refusal()
    expected = PlayedSession(tiny, PROMPT, GREEDY, chunk_len=64).decode(8)
    assert await other.decode(8) == expected.tokens
    await other.finish()


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

    def failing(rows, cache):
        if rows.session.session_id == "bad":
            raise RuntimeError("out of memory")
        return step(rows, cache)

    monkeypatch.setattr(target.engine, "step", failing)
    await bad.send()
    assert await bad.refusal() == (grpc.StatusCode.INTERNAL, "the step failed: out of memory")
    await good.decode(4)
    await good.finish()


async def retry_delay_s(session: ClientSession) -> float:
    """Return what RetryInfo of a refused call says."""
    status = await rpc_status.aio.from_call(session.call)
    retry = error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(retry)
    return retry.retry_delay.ToMilliseconds() / 1000


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

    @pytest.mark.parametrize(
        ("limits", "message"),
        [
            ({"max_sessions": 1}, "1 of 1 sessions are open"),
            ({"kv_tokens": 192}, "192 KV slots are needed, 0 of 192 are free"),
        ],
    )
    async def test_a_full_target_says_when_to_come_back(self, tiny, limits, message):
        async with serve(tiny, **limits) as target:
            first = await target.open(open_request(session_id="first")).begin()
            late = await target.open(open_request(session_id="late")).send_first()
            code, details = await late.refusal()
            assert (code, details) == (grpc.StatusCode.RESOURCE_EXHAUSTED, message)
            assert await retry_delay_s(late) > 0
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
                await call.done_writing()
                await until(lambda: not target.scheduler.num_sessions)
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

    async def test_half_closing_after_the_last_tree_ends_the_call_well(self, target):
        session = await target.open(open_request()).begin()
        assert await session.finish() is grpc.StatusCode.OK

    async def test_a_hundred_random_cancels_leave_nothing(self, target):
        rng = random.Random(0)

        async def give_up(number: int) -> None:
            call = target.stub.Decode()
            session = ClientSession(call, [open_request(PROMPT, session_id=f"s{number}")])
            decoding = asyncio.create_task(self.decode(session))
            await asyncio.sleep(rng.random() * 0.05)
            call.cancel()
            await asyncio.gather(decoding, return_exceptions=True)

        await asyncio.gather(*(give_up(number) for number in range(100)))

    async def decode(self, session: ClientSession) -> None:
        await session.begin()
        await session.decode(50)
