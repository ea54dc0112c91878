"""Decode refuses what cannot be, by name, before anything is reserved and at nobody else's cost."""

import grpc
import pytest

from protos import speculation_pb2 as spec
from protos import target_pb2 as pb
from tests.target_service.played_session import PlayedSession
from tests.target_service.served_target import (
    GREEDY,
    open_request,
    refusal_of,
    tree_of,
)

PROMPT = list(range(40, 80))
INVALID = grpc.StatusCode.INVALID_ARGUMENT


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
    assert target.memory.num_held == 0


async def test_a_call_without_a_message_is_refused(target):
    call = target.stub.Decode()
    await call.done_writing()
    assert await refusal_of(call) == (INVALID, OPENINGS[0][1])


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


async def test_only_trees_and_runs_follow_the_first_message(target):
    session = await target.open(open_request()).begin()
    await session.call.write(open_request(session_id="b"))
    code, details = await session.refusal()
    assert (code, details) == (
        INVALID,
        "every message of Decode after the first must be `verify` or `run`",
    )


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
