"""The draft service finds its target whenever it comes, and lets go of taps it no longer wants."""

import asyncio
from contextlib import aclosing

import grpc
import pytest

from draft_service.registry import DrafterSpec, Registry
from draft_service.session import DraftSession
from draft_service.upstream import Target
from protos import serving
from protos.messages import Plan, SamplingParams
from tests.draft_service.scripted_target import PAIRING, Feed, ScriptedTarget, attached, frame
from tests.loopback import eventually, listening_on

PROMPT = [7, 8, 9]


def opened():
    return DraftSession("s", "ngram", list(PROMPT), SamplingParams(), Plan(3))


async def test_drafters_are_loaded_when_the_target_comes(tmp_path):
    """It may come later than the draft service."""
    address = f"unix:{tmp_path}/target"
    registry = Registry([DrafterSpec.parse("ngram")], kv_tokens=64)
    async with serving.open_channel(address) as channel:
        attaching = asyncio.create_task(Target(channel, address).attach(registry, None))
        await eventually(lambda: channel.get_state() is not grpc.ChannelConnectivity.IDLE)
        assert registry.all == []

        async with listening_on(address, ScriptedTarget(Feed()).add_to):
            await attaching

    assert registry.entry("ngram").loaded.pairing.vocab_size == PAIRING.vocab_size


async def test_taps_begin_where_the_session_stands():
    """The target is told what is known, and the session what it missed."""
    feed = Feed()
    feed.put(attached([1, 2], first_row=4), frame(4, [5]))
    target = ScriptedTarget(feed)
    session = opened()
    async with target.serving() as address, serving.open_channel(address) as channel:
        async with aclosing(
            Target(channel, address).taps(session, PAIRING, from_start=False)
        ) as taps:
            first = await anext(taps)

    assert (first.base_len, list(first.tokens)) == (4, [5])
    assert (session.tokens, session.next_row) == ([*PROMPT, 1, 2], 4)
    (request,) = target.requests
    assert (request.session_id, request.known_len) == ("s", 3)
    assert list(request.pairing.tap_layers) == list(PAIRING.tap_layers)


async def test_taps_end_with_the_session():
    feed = Feed()
    feed.put(attached(), frame(0, [8]))
    feed.end()
    target = ScriptedTarget(feed)
    async with target.serving() as address, serving.open_channel(address) as channel:
        frames = [
            one async for one in Target(channel, address).taps(opened(), PAIRING, from_start=False)
        ]

    assert [list(one.tokens) for one in frames] == [[8]]


async def test_taps_that_are_left_are_unsubscribed():
    """Else the target would go on to buffer them."""
    feed = Feed()
    feed.put(attached(), frame(0, [8]))
    target = ScriptedTarget(feed)
    async with target.serving() as address, serving.open_channel(address) as channel:
        async with aclosing(
            Target(channel, address).taps(opened(), PAIRING, from_start=False)
        ) as taps:
            await anext(taps)
            assert target.num_streams == 1

        await eventually(lambda: target.num_streams == 0)


async def test_taps_that_leave_a_gap_are_refused_and_unsubscribed():
    feed = Feed()
    feed.put(attached(first_row=3))
    target = ScriptedTarget(feed)
    async with target.serving() as address, serving.open_channel(address) as channel:
        with pytest.raises(ValueError, match="begin at row 3, but only 3 tokens are known"):
            await anext(Target(channel, address).taps(opened(), PAIRING, from_start=False))

        await eventually(lambda: target.num_streams == 0)
