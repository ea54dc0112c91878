"""Whatever a drafter does, the answer is the target's; what the rounds report adds up."""

from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import grpc
import pytest

from gateway.experience import Experience
from gateway.policy import policy_for
from gateway.sampling_params import parse_request
from gateway.session import Session
from gateway.upstream import DraftReplicas, TargetStream
from protos import gateway_pb2 as pb
from protos import serving, target_pb2_grpc
from protos.messages import Plan
from tests.gateway import scripted_drafter as drafters
from tests.gateway.local_gateway import (
    MODEL,
    NOBODY,
    PROMPT,
    RULE,
    answer,
    gateway,
    plain_answer,
    request,
    token_ids,
)
from tests.gateway.rule_target import TIMINGS
from tests.gateway.scripted_target import ScriptedTarget
from tests.loopback import eventually

HONEST = drafters.drafting(drafters.right)
# Tokens enough for a drafter to open before the last of them.
LONG = 200
GARBLED = {
    name: drafters.drafting(getattr(drafters, name))
    for name in ("half_right", "wrong", "stale", "future", "rootless", "wordless")
}
TROUBLED = {
    "silent": (drafters.silent, 0.02, "no draft within 20 ms"),
    "flooding": (drafters.flooding, 0.02, "no draft within 20 ms"),
    # These are not waited for: they are gone, or not there.
    "mute": (drafters.mute, 60.0, "no drafter follows the session yet"),
    "leaving": (drafters.leaving, 60.0, "the draft service ended the session"),
    "babbling": (drafters.babbling, 60.0, "nonsense: the parent of node 1"),
    "empty": (drafters.empty, 60.0, "nonsense: a tree has 1 to 64 nodes, got 0"),
    "dying": (drafters.dying(), 60.0, "INTERNAL: broken"),
    "refusing": (
        drafters.refusing(grpc.StatusCode.FAILED_PRECONDITION, "hidden_size: 1, 2"),
        60.0,
        "FAILED_PRECONDITION: hidden_size: 1, 2",
    ),
}


async def answered(script, **options):
    """Return the chunks of an answer, which is the target's and leaves nothing behind."""
    async with gateway(script, **options) as local:
        chunks = await answer(local, new_tokens=LONG)
        await local.all_is_free()

    assert token_ids(chunks) == plain_answer(LONG)
    assert chunks[-1].finish.reason == pb.FinishInfo.REASON_LENGTH
    assert local.target.faults == []
    check_statistics(chunks, local.target)
    return chunks


def check_statistics(chunks, target):
    """The last chunk sums up what the chunks and the target saw."""
    rounds, stats = chunks[1:], chunks[-1].finish.speculation
    assert stats.rounds == len(rounds) == len(target.trees)
    assert stats.drafted == sum(tree.num_drafts for tree in target.trees)
    assert stats.accepted == sum(chunk.accepted_tokens for chunk in rounds)
    assert stats.accepted == sum(stats.accepted_by_position) <= stats.drafted
    assert stats.accept_length == 1 + stats.accepted / stats.rounds
    assert list(stats.accepted_by_position) == sorted(stats.accepted_by_position, reverse=True)
    assert stats.verify.forward_us == stats.rounds * TIMINGS.forward_us
    assert [chunk.HasField("timings") for chunk in chunks] == [False] + [True] * len(rounds)


async def test_right_drafts_are_accepted():
    """Four tokens a round: three drafts and the bonus token."""
    chunks = await answered(HONEST)

    stats = chunks[-1].finish.speculation
    assert stats.accepted > 0
    assert stats.drafter_id == "scripted"
    assert max(len(chunk.token_ids) for chunk in chunks) == 4
    for chunk in chunks[1:]:
        assert len(chunk.token_ids) - chunk.accepted_tokens in (0, 1)


@pytest.mark.parametrize("script", GARBLED.values(), ids=GARBLED)
async def test_no_draft_changes_an_answer(script):
    await answered(script, deadline_s=0.02)


@pytest.mark.parametrize(("script", "deadline_s", "trouble"), TROUBLED.values(), ids=TROUBLED)
async def test_no_drafter_in_trouble_stops_an_answer(script, deadline_s, trouble):
    """The answer says what was wrong with it."""
    chunks = await answered(script, deadline_s=deadline_s)

    assert trouble in chunks[-1].finish.speculation.drafter_trouble
    assert chunks[-1].finish.speculation.missed > 0


async def test_a_draft_service_that_is_not_there_stops_no_answer():
    chunks = await answered(drafters.silent, drafter_address=NOBODY)

    assert "UNAVAILABLE" in chunks[-1].finish.speculation.drafter_trouble


async def test_without_speculation_nobody_is_asked_for_drafts():
    async with gateway(HONEST) as local:
        chunks = await answer(local, speculation=pb.Speculation(mode=pb.Speculation.MODE_OFF))

    assert token_ids(chunks) == plain_answer()
    assert local.drafter.opened == []
    assert not local.target.opened[0].expect_taps
    (opened,) = local.target.opened
    assert opened.run.until_len == len(opened.prompt_token_ids) + opened.max_new_tokens
    stats = chunks[-1].finish.speculation
    assert (stats.drafted, stats.missed, stats.drafter_trouble) == (0, 0, "")


async def test_the_target_is_told_what_ends_a_run_and_how_urgent_it_is():
    stopping = pb.StoppingCriteria(max_new_tokens=5, stop_token_ids=[3, 1], ignore_eos=True)
    async with gateway(HONEST) as local:
        await answer(local, stopping=stopping, priority=-2)

    (opened,) = local.target.opened
    assert sorted(opened.stop_token_ids) == [1, 3]
    assert opened.priority == -2
    assert not opened.HasField("run")


@pytest.mark.parametrize(("share", "unsaid"), [(0.0, False), (1.0, True)])
async def test_a_request_may_be_recorded_if_it_says_so_or_is_in_the_share(share, unsaid):
    async with gateway(HONEST, record_share=share) as local:
        for wish in ({}, {"recordable": True}, {"recordable": False}):
            await answer(local, **wish)

    assert [opened.recordable for opened in local.target.opened] == [unsaid, True, False]


@pytest.mark.parametrize("nodes", [2, 3])
async def test_no_more_is_verified_than_the_plan_allows(nodes):
    speculation = pb.Speculation(
        mode=pb.Speculation.MODE_FIXED, steps=5, top_k=2, draft_tokens=nodes, drafter_id="mine"
    )
    async with gateway(HONEST) as local:
        chunks = await answer(local, new_tokens=LONG, speculation=speculation)

    assert token_ids(chunks) == plain_answer(LONG)
    assert max(len(tree.tokens) for tree in local.target.trees) == nodes
    (opened,) = local.drafter.opened
    assert Plan.from_proto(opened.plan) == Plan(5, 2, nodes)
    assert opened.drafter_id == "mine"


async def test_drafter_and_target_are_told_the_same():
    """One session id, the prompt, the seed in use and how much is wanted."""
    async with gateway(HONEST) as local:
        chunks = await answer(local, new_tokens=LONG)

    (at_target,), (at_drafter,) = local.target.opened, local.drafter.opened
    assert at_target.session_id == at_drafter.session_id
    assert at_target.sampling == at_drafter.sampling
    assert at_target.sampling.seed == chunks[0].prompt_info.seed
    assert list(at_target.prompt_token_ids) == PROMPT
    assert list(at_drafter.token_ids)[:3] == PROMPT
    assert at_drafter.prompt_len == 3
    assert at_target.max_new_tokens == LONG
    assert at_target.expect_taps


async def test_what_is_cut_off_by_a_stop_was_not_accepted():
    """Wherever in a round the stop comes."""
    tokens = plain_answer(LONG)
    stops = [token for token in tokens if tokens.index(token) > LONG // 2][:4]
    async with gateway(HONEST) as local:
        for stop in stops:
            stopping = pb.StoppingCriteria(stop_token_ids=[stop], ignore_eos=True)
            chunks = await answer(local, stopping=stopping)

            assert token_ids(chunks) == tokens[: tokens.index(stop) + 1]
            assert all(chunk.accepted_tokens <= len(chunk.token_ids) for chunk in chunks)
            check_statistics(chunks, local.target)
            local.target.trees.clear()


@asynccontextmanager
async def session(script, new_tokens=24):
    """A session by itself, and the target it decodes at."""
    target = ScriptedTarget(RULE)
    drafter = drafters.ScriptedDrafter(script, target)
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(
                serving.open_channel(await stack.enter_async_context(service.serving()))
            )
            for service in (target, drafter)
        ]
        stub = target_pb2_grpc.TargetServiceStub(channels[0])
        generation = parse_request(request(new_tokens), MODEL)
        policy = policy_for(generation.speculation, Experience(), "")
        one = Session(generation, MODEL, TargetStream(stub, "s"), policy, 5.0)
        yield one, one.run(DraftReplicas(channels[1:])), target, drafter


async def test_rounds_do_not_wait_for_who_reads_the_answer():
    """And what they held at the services is free before the last chunk is read."""
    async with session(HONEST) as (one, chunks, target, drafter):
        async with aclosing(chunks):
            first = await anext(chunks)
            await eventually(lambda: one.num_tokens == 24)
            await eventually(lambda: target.num_sessions == drafter.num_sessions == 0)
            rest = [committed async for committed in chunks]

    tokens = [token for committed in (first, *rest) for token in committed.chunk.token_ids]
    assert tokens == plain_answer()
    assert rest[-1].chunk.finish is not None


@pytest.mark.parametrize("num_chunks", [1, 3])
async def test_an_answer_that_nobody_wants_any_more_is_given_up(num_chunks):
    async with session(HONEST, new_tokens=4000) as (_, chunks, target, drafter):
        async with aclosing(chunks):
            for _ in range(num_chunks):
                await anext(chunks)

        await eventually(lambda: target.num_sessions == drafter.num_sessions == 0)
        assert len(target.trees) < 4000 / 4


AUTO = pb.Speculation(mode=pb.Speculation.MODE_AUTO)


@pytest.mark.parametrize(
    "script", [HONEST, *GARBLED.values(), *(trouble[0] for trouble in TROUBLED.values())]
)
async def test_whatever_is_tried_and_given_up_the_answer_is_the_targets(script):
    async with gateway(script, deadline_s=0.02) as local:
        for _ in range(3):
            chunks = await answer(local, new_tokens=LONG, speculation=AUTO)
            assert token_ids(chunks) == plain_answer(LONG)
            assert local.target.faults == []
        await local.all_is_free()


async def test_auto_measures_plain_decoding_before_it_asks_for_drafts():
    async with gateway(HONEST) as local:
        chunks = await answer(local, new_tokens=LONG, speculation=AUTO)

    (opened,) = local.target.opened
    assert opened.run.until_len > len(PROMPT)
    assert local.drafter.opened
    plans = {Plan.from_proto(use.plan): use.rounds for use in chunks[-1].finish.speculation.plans}
    assert sum(plans.values()) == chunks[-1].finish.speculation.rounds
    assert plans[Plan(0)] > 0
    assert any(plan.steps for plan in plans)
