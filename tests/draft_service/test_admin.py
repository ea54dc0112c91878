"""Drafters come and go over the wire, while sessions are served."""

import asyncio
import gc
import threading
import weakref

import grpc
import pytest

from draft_service import loader
from protos import draft_admin_pb2 as pb
from protos import draft_pb2
from tests.draft_service.local_service import (
    PROMPT,
    PROMPT_FRAMES,
    drafting,
    open_session,
    opening,
    refused_session,
)
from tests.draft_service.scripted_target import Conversations, Feed, attached, frame, tapped
from tests.loopback import eventually
from tests.tiny_models import write_tiny_eagle3


@pytest.fixture
def eagle(tmp_path):
    return str(write_tiny_eagle3(tmp_path / "eagle", hidden=32, vocab=40, target_layers=8))


async def state(service, drafter_id):
    return (await service.info(drafter_id)).state


async def load(service, drafter_id, directory=""):
    """Load a drafter; return how that ended."""
    request = pb.LoadDrafterRequest(drafter_id=drafter_id, directory=directory)
    await service.admin.LoadDrafter(request)

    async def is_settled():
        return await state(service, drafter_id) != draft_pb2.DRAFTER_STATE_LOADING

    await eventually(is_settled)
    return await service.info(drafter_id)


async def refusal_of(call):
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value.code(), refused.value.details()


async def test_a_drafter_is_loaded_while_a_session_is_served(eagle):
    """The next session may name it; the one that runs stays with its own."""
    feed = Feed()
    async with drafting(feed) as service:
        running = await open_session(service)
        info = await load(service, "eagle", eagle)
        assert (info.state, info.kind, info.refusal) == (
            draft_pb2.DRAFTER_STATE_READY,
            "eagle3",
            "",
        )
        feed.put(*PROMPT_FRAMES)
        assert (await running.read()).tree.drafter_id == "ngram"
        other = await open_session(service, session_id="t", drafter_id="eagle")
        assert (await service.info("eagle")).sessions == 1
        other.cancel()


async def test_sessions_are_served_while_a_drafter_is_being_loaded(eagle, monkeypatch):
    """However long that takes, in the event loop's drafters and in the thread's."""
    may_go_on = threading.Event()
    talk = Conversations(PROMPT)
    async with drafting(talk, "ngram", f"eagle={eagle}") as service:
        calls = {
            name: await open_session(service, session_id=name, drafter_id=name)
            for name in ("ngram", "eagle")
        }
        monkeypatch.setattr(loader, "check_memory", lambda *_: may_go_on.wait(30))
        request = pb.LoadDrafterRequest(drafter_id="other", directory=eagle)
        await service.admin.LoadDrafter(request)
        for _ in range(3):
            for name, call in calls.items():
                length, tree = await talk.commit(name, 3), draft_pb2.DraftResponse()
                while tree.tree.committed_len < length:
                    tree = await call.read()
        info = await service.info("other")
        refused = await refused_session(service, opening(session_id="t", drafter_id="other"))
        may_go_on.set()
        await eventually(lambda: service.registry.all[-1].takes_sessions)

    assert info.state == draft_pb2.DRAFTER_STATE_LOADING
    assert refused.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert refused.details() == "it is being loaded"


async def test_one_that_does_not_fit_is_refused_with_its_reason_and_may_be_loaded_again(
    eagle, tmp_path
):
    wide = write_tiny_eagle3(tmp_path / "wide", hidden=64, vocab=40, target_layers=8)
    async with drafting(Feed()) as service:
        info = await load(service, "eagle", str(wide))
        assert info.state == draft_pb2.DRAFTER_STATE_REFUSED
        assert all(part in info.refusal for part in (str(wide), "64", "32"))
        assert (await load(service, "eagle", eagle)).state == draft_pb2.DRAFTER_STATE_READY


@pytest.mark.parametrize(
    ("request_", "code", "reason"),
    [
        (pb.LoadDrafterRequest(drafter_id="ngram"), "ALREADY_EXISTS", "'ngram' is there already"),
        (pb.LoadDrafterRequest(drafter_id="a b", directory="/x"), "INVALID_ARGUMENT", "'a b'"),
        (pb.LoadDrafterRequest(drafter_id="x"), "INVALID_ARGUMENT", "got 'x'"),
        (
            pb.LoadDrafterRequest(drafter_id="x", directory="y" * 5000),
            "INVALID_ARGUMENT",
            "at most 4096 characters",
        ),
        (pb.UnloadDrafterRequest(drafter_id="x"), "NOT_FOUND", "no drafter 'x'"),
        (pb.UnloadDrafterRequest(drafter_id="ngram"), "FAILED_PRECONDITION", "is the default"),
        (pb.SetDefaultDrafterRequest(drafter_id="x"), "NOT_FOUND", "no drafter 'x'"),
        (pb.SetDefaultDrafterRequest(drafter_id="gone"), "FAILED_PRECONDITION", "/nowhere"),
        (
            pb.SetCanaryRequest(canary=draft_pb2.Canary(drafter_id="ngram", share=1.5)),
            "INVALID_ARGUMENT",
            r"share must be in [0, 1], got 1.5",
        ),
        (
            pb.StartShadowRequest(drafter_id="ngram", share=1),
            "INVALID_ARGUMENT",
            "must not be the default's, got 'ngram'",
        ),
        (
            pb.StartShadowRequest(drafter_id="gone", share=0.5),
            "FAILED_PRECONDITION",
            "/nowhere",
        ),
        (
            pb.StartShadowRequest(
                drafter_id="gone", share=1, promote_if=draft_pb2.PromotionRule(better_by=-1)
            ),
            "INVALID_ARGUMENT",
            "better_by must be in [0, 10], got -1",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_nonsense_is_refused_by_name_value_and_limit(request_, code, reason):
    """And nothing has changed."""
    method = type(request_).__name__.removesuffix("Request")
    async with drafting(Feed(), "ngram", "gone=/nowhere") as service:
        before = await service.listed()
        found, details = await refusal_of(getattr(service.admin, method)(request_))
        assert await service.listed() == before

    assert found.name == code
    assert reason in details


async def test_nothing_can_be_loaded_before_the_target_is_there():
    async with drafting(Feed(), attach=False) as service:
        request = pb.LoadDrafterRequest(drafter_id="ngram")
        code, details = await refusal_of(service.admin.LoadDrafter(request))

    assert code is grpc.StatusCode.UNAVAILABLE
    assert "target" in details


async def test_a_new_default_is_for_new_sessions(eagle):
    feed = Feed()
    async with drafting(feed) as service:
        running = await open_session(service)
        await load(service, "eagle", eagle)
        request = pb.SetDefaultDrafterRequest(drafter_id="eagle")
        answer = await service.admin.SetDefaultDrafter(request)
        feed.put(*PROMPT_FRAMES)
        assert (await running.read()).tree.drafter_id == "ngram"
        await open_session(service, session_id="t")

        assert answer.previous_drafter_id == "ngram"
        listed = await service.listed()
        assert listed.default_drafter_id == "eagle"
        assert [info.sessions for info in listed.drafters] == [1, 1]


async def test_an_unloaded_drafter_finishes_its_sessions_and_is_freed(eagle):
    """By counting references alone, weights, KV cache and all."""
    feed = Feed()
    feed.put(attached(), tapped(0, [2, 3]))
    async with drafting(feed) as service:
        await load(service, "eagle", eagle)
        drafter = weakref.ref(service.registry.entry("eagle").loaded)
        running = await open_session(service, token_ids=[1], drafter_id="eagle")
        assert (await running.read()).tree.committed_len == 3
        assert service.counters.kv_pages.used == 1

        answer = await service.admin.UnloadDrafter(pb.UnloadDrafterRequest(drafter_id="eagle"))
        assert answer.sessions == 1
        assert await state(service, "eagle") == draft_pb2.DRAFTER_STATE_DRAINING
        refused = await refused_session(service, opening(session_id="t", drafter_id="eagle"))
        assert refused.code() is grpc.StatusCode.FAILED_PRECONDITION
        feed.put(tapped(2, [4]))
        assert (await running.read()).tree.committed_len == 4

        gc.disable()
        try:
            running.cancel()
            await eventually(lambda: drafter() is None)
        finally:
            gc.enable()
        assert [info.drafter_id for info in (await service.listed()).drafters] == ["ngram"]
        refused = await refused_session(service, opening(session_id="t", drafter_id="eagle"))
        assert refused.code() is grpc.StatusCode.NOT_FOUND


async def test_a_canary_takes_its_share_of_sessions_that_name_no_drafter(eagle):
    async with drafting(Feed(), max_sessions=100) as service:
        await load(service, "eagle", eagle)
        canary = draft_pb2.Canary(drafter_id="eagle", share=0.25)
        await service.admin.SetCanary(pb.SetCanaryRequest(canary=canary))
        opened = [open_session(service, session_id=str(number)) for number in range(60)]
        calls = await asyncio.gather(*opened)

        listed = await service.listed()
        assert listed.canary == canary
        counts = {info.drafter_id: info.sessions for info in listed.drafters}
        assert 5 <= counts["eagle"] <= 27
        assert counts["ngram"] == 60 - counts["eagle"]
        for call in calls:
            call.cancel()


async def test_scores_are_listed():
    """Prompt lookup copies 3, 4, 1 from before; the target goes on 3, 4, 2."""
    feed = Feed()
    feed.put(*PROMPT_FRAMES, frame(5, [3, 4, 2]), frame(8, [5]))
    async with drafting(feed) as service:
        await open_session(service)

        async def is_scored():
            return (await service.info("ngram")).score.rounds

        await eventually(is_scored)
        score = (await service.info("ngram")).score

    assert (score.rounds, score.drafted_rounds, score.accepted) == (1, 1, 2)
    assert list(score.accepted_by_position) == [1, 1]
    assert score.accept_length == 3
