"""How a draft session is refused or ends badly: the status, the reason, and nothing is left."""

import re
from dataclasses import replace

import grpc
import pytest

from draft_service.drafters.eagle3 import Eagle3Drafter
from protos import draft_pb2 as pb
from protos import speculation_pb2
from protos.serving import abort_retryable
from tests.draft_service.local_service import (
    PLAN,
    PROMPT_FRAMES,
    drafting,
    ended_session,
    open_session,
    opening,
    refusal,
    refused_session,
)
from tests.draft_service.scripted_target import PAIRING, Feed, attached, frame, tapped
from tests.loopback import eventually, retry_delay_ms
from tests.tiny_models import write_tiny_eagle3

BAD_OPENS = {
    "session id": ({"session_id": "a b"}, "session_id must be .*got 'a b'"),
    "no tokens": ({"token_ids": []}, "token_ids needs at least one token, got none"),
    "token": ({"token_ids": [1, 40]}, r"token_ids must be in \[0, 40\), got 40"),
    "plan": ({"plan": speculation_pb2.Plan(steps=64)}, r"plan.steps must be in \[0, 63\], got 64"),
    "sampling": (
        {"sampling": speculation_pb2.SamplingParams(top_p=0)},
        r"top_p must be in \(0, 1\], got 0.0",
    ),
}


@pytest.mark.parametrize(("fields", "reason"), BAD_OPENS.values(), ids=BAD_OPENS)
async def test_a_bad_field_is_invalid(fields, reason):
    async with drafting(Feed()) as service:
        error = await refused_session(service, opening(**fields))
        await service.all_is_free()

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert re.search(reason, error.details())


@pytest.mark.parametrize(
    "requests", [[], [pb.DraftRequest()], [pb.DraftRequest(plan=PLAN)]], ids=len
)
async def test_a_session_must_begin_with_open(requests):
    async with drafting(Feed()) as service:
        error = await refused_session(service, *requests)
        await service.all_is_free()

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "must be `open`" in error.details()


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (pb.DraftRequest(plan=speculation_pb2.Plan(steps=64)), "plan.steps must be in [0, 63]"),
        (opening(), "must be `plan`"),
        (pb.DraftRequest(), "must be `plan`"),
    ],
)
async def test_what_is_no_plan_ends_the_session_as_invalid(request_, reason):
    feed = Feed()
    feed.put(*PROMPT_FRAMES)
    async with drafting(feed) as service:
        call = await open_session(service)
        await call.write(request_)
        error = await refusal(call)
        await service.all_is_free()

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert reason in error.details()


async def test_an_unknown_drafter_is_not_found_and_the_known_ones_are_named():
    async with drafting(Feed(), "ngram", "gone=/nowhere") as service:
        error = await refused_session(service, opening(drafter_id="x" * 1000))

    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert "known: ngram, gone" in error.details()
    assert len(error.details()) < 200


async def test_a_refused_drafter_fails_with_both_values(tmp_path):
    eagle = write_tiny_eagle3(tmp_path, hidden=32, vocab=40, target_layers=8)
    other = replace(PAIRING, tap_layers=(1, 4, 5))
    async with drafting(Feed(), f"eagle={eagle}", pairing=other) as service:
        error = await refused_session(service, opening())

    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "[2, 4, 5]" in error.details()
    assert "[1, 4, 5]" in error.details()


async def test_nothing_can_be_drafted_before_the_target_is_there():
    async with drafting(Feed(), attach=False) as service:
        error = await refused_session(service, opening())

    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert re.search("the target unix:.* was not reachable yet", error.details())


async def test_a_service_without_room_says_when_to_try_again():
    """Room is free again once a session is gone."""
    feed = Feed()
    async with drafting(feed, max_sessions=2) as service:
        calls = [await open_session(service, session_id=name) for name in "ab"]
        error = await refused_session(service, opening(session_id="c"))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "all 2 sessions are in use" in error.details()
        assert retry_delay_ms(error) > 0

        calls[0].cancel()
        await eventually(lambda: service.is_loaded(1, 1, 1))
        await open_session(service, session_id="c")


def aborting(code, details):
    async def script(request, context):
        await context.abort(code, details)
        yield

    return script


async def test_a_pairing_that_the_target_refuses_is_passed_on_with_both_values():
    script = aborting(grpc.StatusCode.FAILED_PRECONDITION, "hidden_size: 32, 64")
    async with drafting(script) as service:
        error = await ended_session(service)
        await service.all_is_free()

    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert error.details() == "hidden_size: 32, 64"


async def test_taps_that_fell_too_far_behind_may_be_tried_again():
    async def script(request, context):
        await abort_retryable(context, "too far behind")
        yield

    async with drafting(script) as service:
        error = await ended_session(service)

    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.details() == "too far behind"
    assert retry_delay_ms(error) > 0


@pytest.mark.parametrize("code", [grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INTERNAL])
async def test_taps_that_end_otherwise_make_the_session_unavailable(code):
    async with drafting(aborting(code, "no session 's'")) as service:
        error = await ended_session(service)
        await service.all_is_free()

    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details() == "the target's taps ended: no session 's'"


async def test_a_target_that_dies_makes_the_session_unavailable():
    feed = Feed()
    feed.put(*PROMPT_FRAMES)
    async with drafting(feed) as service:
        call = await open_session(service)
        await call.read()
        await service.kill_target()
        error = await refusal(call)
        await service.all_is_free()

    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details().startswith("the target's taps ended: ")


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (frame(6, [1]), "begins at row 6, expected 5"),
        (frame(0, [1]), "begins at row 0, expected 5"),
        (attached(first_row=99), "begin at row 99, but only 6 tokens are known"),
    ],
)
async def test_broken_taps_make_the_session_unavailable(broken, reason):
    feed = Feed()
    feed.put(*PROMPT_FRAMES, broken)
    async with drafting(feed) as service:
        error = await ended_session(service)
        await service.all_is_free()

    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert reason in error.details()


class ByName:
    """A script for every session."""

    def __init__(self, *names):
        self.feeds = {name: Feed() for name in names}

    async def __call__(self, request, context):
        yield attached()
        async for response in self.feeds[request.session_id](request, context):
            yield response


@pytest.mark.parametrize(
    ("last_frame", "code", "reason"),
    [
        (tapped(0, [1] * 200), grpc.StatusCode.RESOURCE_EXHAUSTED, "all 2 KV pages"),
        (frame(0, [1]), grpc.StatusCode.UNAVAILABLE, "the taps broke: unknown tensor dtype 0"),
        (tapped(0, [40]), grpc.StatusCode.UNAVAILABLE, r"tokens must be in \[0, 40\), got 40"),
    ],
    ids=["no room", "no taps", "no token"],
)
async def test_a_session_that_cannot_go_on_ends_alone(tmp_path, last_frame, code, reason):
    """One beside it is drafted for before and after, and what it held is free for the next."""
    eagle = write_tiny_eagle3(tmp_path, hidden=32, vocab=40, target_layers=8)
    target = ByName("a", "b")
    async with drafting(target, f"eagle={eagle}", kv_tokens=128) as service:
        calls = [await open_session(service, session_id=name, token_ids=[1]) for name in "ab"]
        target.feeds["a"].put(tapped(0, [1]))
        assert len((await calls[0].read()).tree.tokens) == 4

        target.feeds["b"].put(last_frame)
        error = await refusal(calls[1])
        target.feeds["a"].put(tapped(1, [1] * 100))

        assert len((await calls[0].read()).tree.tokens) == 4
        assert service.counters.dropped_for_memory == (code is grpc.StatusCode.RESOURCE_EXHAUSTED)
        calls[0].cancel()
        await service.all_is_free()

    assert error.code() is code
    assert re.search(reason, error.details())
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        assert retry_delay_ms(error) > 0


async def test_a_drafter_that_breaks_says_why(monkeypatch, tmp_path):
    """What else it follows in later batches is served."""
    eagle = write_tiny_eagle3(tmp_path, hidden=32, vocab=40, target_layers=8)
    feed = Feed()
    feed.put(attached(), tapped(0, [1]))
    async with drafting(feed, f"eagle={eagle}") as service:
        with monkeypatch.context() as patch:
            patch.setattr(Eagle3Drafter, "extend", lambda *_: 1 / 0)
            error = await ended_session(service)
            await service.all_is_free()
        feed.put(attached(), tapped(0, [1]))
        call = await open_session(service, token_ids=[1])
        assert len((await call.read()).tree.tokens) == 4

    assert error.code() is grpc.StatusCode.INTERNAL
    assert error.details() == "the drafter failed: division by zero"
