"""Draft sessions over a real socket, against a target that follows a script."""

import asyncio

import grpc
import pytest
import torch

from draft_service.drafters.eagle3 import Eagle3Drafter
from draft_service.drafters.target_side import TargetSide
from protos import draft_pb2 as pb
from protos import speculation_pb2, tensors
from protos.messages import Plan, SamplingParams
from protos.pairing import Pairing
from tests.draft_service.drafters.followed import Followed
from tests.draft_service.local_service import (
    PLAN,
    PROMPT,
    PROMPT_FRAMES,
    drafting,
    open_session,
)
from tests.draft_service.scripted_target import (
    PAIRING,
    Feed,
    attached,
    frame,
    playing,
    tapped,
)
from tests.loopback import eventually
from tests.tiny_models import write_tiny_eagle3


async def test_a_tree_is_pushed_for_every_commit():
    """Its root is the last committed token, and it is no larger than the plan."""
    feed = Feed()
    async with drafting(feed) as service:
        call = await open_session(service)
        feed.put(*PROMPT_FRAMES)
        first = (await call.read()).tree
        feed.put(frame(5, [3, 4]))
        second = (await call.read()).tree

    assert (first.committed_len, list(first.tokens)) == (6, [2, 3, 4, 1])
    assert list(first.parents) == [-1, 0, 1, 2]
    assert first.drafter_id == "ngram"
    assert (second.committed_len, list(second.tokens)) == (8, [4, 1, 2, 3])


@pytest.mark.parametrize("plan", [PLAN, speculation_pb2.Plan(steps=3, top_k=2, draft_tokens=9)])
async def test_taps_reach_a_drafter_as_they_are(tmp_path, plan):
    """Its trees are those that it grows without a socket between."""
    eagle = write_tiny_eagle3(tmp_path, hidden=32, vocab=40, target_layers=8)
    side = TargetSide(num_layers=8, vocab_size=40, hidden_size=32, max_context_len=64)
    alone = Followed.by(Eagle3Drafter.load("eagle", eagle, side, kv_tokens=128))
    feed, row, trees, expected, tokens = Feed(), 0, [], [], [1]
    feed.put(attached())
    async with drafting(feed, f"eagle={eagle}") as service:
        call = await open_session(service, token_ids=tokens, plan=plan)
        for new in ([2, 3, 4], [5], [6, 7]):
            taps = torch.randn(len(new), 3 * 32).to(torch.bfloat16)
            feed.put(frame(row, new, taps=tensors.to_proto(taps)))
            trees.append(list((await call.read()).tree.tokens)[1:])

            tokens = [*tokens, *new]
            alone.extend(row, new, taps)
            draft = alone.draft(tokens, Plan.from_proto(plan), SamplingParams())
            expected.append(list(draft.tokens))
            row += len(new)

    assert trees == expected
    assert [len(tree) for tree in trees] == [plan.draft_tokens - 1] * 3


async def test_a_drafter_may_join_a_session_that_is_already_running():
    """The tokens it missed come with the first message."""
    feed = Feed()
    feed.put(attached([3, 4], first_row=7), frame(7, [1]))
    async with drafting(feed) as service:
        call = await open_session(service)
        tree = (await call.read()).tree

    assert (tree.committed_len, list(tree.tokens)) == (9, [1, 2, 3, 4])
    assert service.target.requests[0].known_len == len(PROMPT)


@pytest.mark.parametrize(("prompt_len", "late"), [(0, False), (len(PROMPT), False), (2, True)])
async def test_who_joins_late_asks_for_the_rows_it_missed(prompt_len, late):
    """What is held back of a new session comes by itself."""
    feed = Feed()
    feed.put(*PROMPT_FRAMES)
    async with drafting(feed) as service:
        call = await open_session(service, prompt_len=prompt_len)
        await call.read()

    assert service.target.requests[0].stored == late


async def test_a_backlog_ends_with_a_tree_for_the_newest_state():
    """Whatever is drafted on the way is in order."""
    feed, count = Feed(), 300
    feed.put(*PROMPT_FRAMES, *(frame(5 + row, [row % 4]) for row in range(count)))
    async with drafting(feed) as service:
        call = await open_session(service)
        lengths = [0]
        while lengths[-1] < 6 + count:
            lengths.append((await call.read()).tree.committed_len)

    assert lengths == sorted(set(lengths))
    assert lengths[-1] == 6 + count


async def test_a_plan_may_change_at_any_time():
    feed = Feed()
    async with drafting(feed) as service:
        call = await open_session(service)
        feed.put(*PROMPT_FRAMES)
        sizes = [len((await call.read()).tree.tokens)]
        await call.write(pb.DraftRequest(plan=speculation_pb2.Plan(steps=1)))
        for row in range(5, 10_000):
            feed.put(frame(row, [PROMPT[(row + 1) % 4]]))
            sizes.append(len((await call.read()).tree.tokens))
            if sizes[-1] == 2:
                break

    assert sizes[0] == 4
    assert sizes[-1] == 2


async def test_sessions_do_not_mix():
    """Two at once, of which each sees its own tokens."""

    async def by_session(request, context):
        yield attached()
        yield frame(0, [5, 6, 5] if request.session_id == "a" else [8, 9, 8])
        await asyncio.Event().wait()

    async with drafting(by_session) as service:
        calls = [
            await open_session(service, session_id=name, token_ids=tokens)
            for name, tokens in (("a", [6, 5, 6, 5]), ("b", [9, 8, 9, 8]))
        ]
        trees = [(await call.read()).tree for call in calls]
        assert await service.load() == (2, 2, 2)

    assert [list(tree.tokens) for tree in trees] == [[5, 6, 5, 6], [8, 9, 8, 9]]


async def test_sessions_that_share_a_drafter_are_all_served(tmp_path):
    """Each sees its own tokens; what was done for them is counted."""
    eagle = write_tiny_eagle3(tmp_path, hidden=32, vocab=40, target_layers=8)

    async def script(request, context):
        yield attached()
        for row in range(20):
            yield tapped(row, [int(request.session_id)])
        await asyncio.Event().wait()

    async with drafting(script, f"eagle={eagle}") as service:
        calls = [await open_session(service, session_id=str(i), token_ids=[1]) for i in range(6)]
        roots = [await roots_of(call, 21) for call in calls]
        counters = service.counters

    assert roots == [{i} for i in range(6)]
    assert counters.extended_rows == 6 * 20
    assert counters.grown_rows >= 6 * 2
    assert counters.batches <= 6 * 20
    assert counters.kv_pages.total == 64


async def roots_of(call, committed_len):
    """Return the last committed tokens of all trees up to so many tokens."""
    roots, tree = set(), speculation_pb2.DraftTree()
    while tree.committed_len < committed_len:
        tree = (await call.read()).tree
        roots.add(tree.tokens[0])
    return roots


async def test_drafters_are_listed_with_what_they_need_and_why_they_are_refused(tmp_path):
    eagle = write_tiny_eagle3(tmp_path, hidden=32, vocab=40, target_layers=8)
    async with drafting(Feed(), "ngram", f"eagle={eagle}", "gone=/nowhere") as service:
        listed = await service.stub.ListDrafters(pb.ListDraftersRequest())

    ngram, fits, gone = listed.drafters
    assert listed.default_drafter_id == "ngram"
    assert (ngram.drafter_id, ngram.kind, ngram.refusal) == ("ngram", "ngram", "")
    assert Pairing.from_proto(fits.pairing).tap_layers == PAIRING.tap_layers
    assert (gone.drafter_id, gone.kind) == ("gone", "")
    assert "/nowhere" in gone.refusal


async def test_a_session_whose_taps_end_ends_well():
    feed = Feed()
    feed.put(*PROMPT_FRAMES)
    feed.end()
    async with drafting(feed) as service:
        call = await open_session(service)
        assert (await call.read()).WhichOneof("message") == "tree"
        assert await call.read() is grpc.aio.EOF
        await service.all_is_free()

    assert await call.code() is grpc.StatusCode.OK


async def test_half_closing_ends_a_session_well():
    async with drafting(Feed()) as service:
        call = await open_session(service)
        await eventually(lambda: service.is_loaded(1, 1, 1))
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        await service.all_is_free()

    assert await call.code() is grpc.StatusCode.OK


@pytest.mark.parametrize("frames", [0, 1, 1000])
async def test_cancelling_frees_everything(frames):
    """While it waits for taps, between trees, and with trees that nobody reads."""
    script = playing(*PROMPT_FRAMES, *(frame(5 + row, [row % 4]) for row in range(frames)))
    async with drafting(script if frames else playing()) as service:
        for _ in range(5):
            call = await open_session(service)
            await eventually(lambda: service.is_loaded(1, 1, 1))
            call.cancel()
            await service.all_is_free()
