"""Taps reach whoever asked for them, all of them and in order, and cost nobody else anything."""

import asyncio

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protos import tensors
from protos.messages import DraftTree, SamplingParams
from target_service.session import Session
from target_service.taps import SubscriberTooSlowError, TapHub
from tests.target_service.tap_rows import HIDDEN, MIB, TAPPED, numbered, reader
from tests.target_service.waiting import soon


def hub_of(max_bytes: int = MIB, attach_timeout_s: float = 5.0) -> TapHub:
    return TapHub(TAPPED, max_bytes=max_bytes, attach_timeout_s=attach_timeout_s)


class PlayedFeed:
    """A session whose steps are made up, and its feed."""

    def __init__(self, hub: TapHub, prompt_len: int = 10, session_id: str = "a") -> None:
        self.hub = hub
        prompt = [i % 50 for i in range(prompt_len)]
        self.session = Session(session_id, prompt, SamplingParams(), 1000, 50)

    async def open(self, *, expect: bool) -> "PlayedFeed":
        await self.hub.open(self.session, expect=expect)
        return self

    def prefill(self, rows: int) -> None:
        first = self.session.cached_len
        self.session.advance(rows)
        self.hub.publish(self.session, first, numbered(rows, first))

    def commit(self, num_tokens: int) -> None:
        """Compute what is left of the prompt and a path, and commit its tokens and a bonus."""
        session, first = self.session, self.session.cached_len
        if session.tree is None:
            session.offer(DraftTree.plain(session.committed_len, session.tokens[-1]))
        session.commit([session.committed_len % 50] * num_tokens)
        self.hub.publish(session, first, numbered(session.cached_len - first, first))

    async def subscribe(self, *layers: int, known_len: int | None = None) -> "Received":
        known = self.session.prompt_len if known_len is None else known_len
        found = await self.hub.subscribe(self.session.session_id, reader(*layers), known)
        return Received(self.session, known, *found)


class Received:
    """What one subscriber gets; `check` holds it against the session's tokens."""

    def __init__(self, session, known_len, subscription, missed, first_row) -> None:
        self.session, self.subscription, self.first_row = session, subscription, first_row
        self.tokens = [*session.tokens[:known_len], *missed]
        self.missed = list(missed)

    async def check(self) -> int:
        """Assert that what came are all rows from first_row on, each with the token after it."""
        next_row = self.first_row
        self.subscription.end()
        while frame := await soon(self.subscription.next_frame()):
            assert frame.base_len == next_row
            rows = numbered(len(frame.tokens), next_row)
            assert torch.equal(tensors.from_proto(frame.taps), rows)
            next_row += len(frame.tokens)
            known = self.session.tokens[frame.base_len + 1 : next_row + 1]
            assert list(frame.tokens) == known
            assert next_row + 1 <= frame.committed_len <= self.session.committed_len
        assert next_row == self.session.cached_len
        return next_row - self.first_row


class TestFeeds:
    async def test_taps_before_an_announced_subscriber_are_held_back(self):
        feed = await PlayedFeed(hub_of()).open(expect=True)
        feed.prefill(4)
        feed.commit(1)
        received = await feed.subscribe(2, 5, 9)
        assert received.first_row == 0
        assert received.missed == feed.session.tokens[10:]
        feed.commit(3)
        assert await received.check() == feed.session.cached_len

    async def test_a_subscriber_nobody_announced_begins_at_the_present(self):
        feed = await PlayedFeed(hub_of()).open(expect=False)
        feed.prefill(4)
        received = await feed.subscribe(2, 5, 9)
        assert received.first_row == 4
        feed.prefill(5)
        feed.commit(2)
        assert await received.check() == 7

    async def test_late_subscribers_learn_the_tokens_they_missed(self):
        feed = await PlayedFeed(hub_of()).open(expect=True)
        feed.commit(4)
        await feed.subscribe(2, 5, 9)
        feed.commit(2)
        second = await feed.subscribe(2, 5, 9, known_len=12)
        assert second.missed == feed.session.tokens[12:16]
        assert second.first_row == feed.session.cached_len
        feed.commit(2)
        assert await second.check() == 2

    @settings(max_examples=60)
    @given(st.lists(st.sampled_from(["prefill", "commit", "subscribe"]), max_size=20))
    async def test_any_order_of_steps_and_subscribers_loses_nothing(self, events):
        feed = await PlayedFeed(hub_of(), prompt_len=12).open(expect=True)
        received = []
        for event in events:
            if event == "subscribe":
                received.append(await feed.subscribe(2, 5, 9))
            elif event == "prefill" and feed.session.cached_len < 9:
                feed.prefill(3)
            else:
                feed.commit(len(received) + 1)
        for one in received:
            await one.check()
        assert feed.hub.num_subscriptions == len(received)

    async def test_a_backlog_too_large_loses_its_oldest_rows_only(self):
        row_bytes = 3 * HIDDEN * 4 + 8
        feed = await PlayedFeed(hub_of(max_bytes=6 * row_bytes), 20).open(expect=True)
        for _ in range(4):
            feed.prefill(4)
        received = await feed.subscribe(2, 5, 9)
        assert received.first_row == 12
        assert await received.check() == 4

    async def test_sessions_do_not_hear_each_other(self):
        hub = hub_of()
        one = await PlayedFeed(hub, session_id="one").open(expect=True)
        other = await PlayedFeed(hub, session_id="other").open(expect=True)
        received = await one.subscribe(2, 5, 9)
        other.commit(3)
        one.commit(1)
        assert await received.check() == 10

    async def test_nobody_listens_and_nothing_is_kept(self):
        feed = await PlayedFeed(hub_of()).open(expect=False)
        feed.commit(1)
        received = await feed.subscribe(2, 5, 9)
        assert received.first_row == 10
        assert await received.check() == 0


class TestEnds:
    async def test_a_slow_subscriber_is_dropped_and_only_it(self):
        row_bytes = 3 * HIDDEN * 4 + 8
        hub = hub_of(max_bytes=20 * row_bytes)
        feed = await PlayedFeed(hub).open(expect=True)
        slow, quick = await feed.subscribe(2, 5, 9), await feed.subscribe(2, 5, 9)
        tokens_only = await feed.subscribe()
        got = 0
        for _ in range(15):
            feed.commit(2)
            got += len((await soon(quick.subscription.next_frame())).tokens)
        assert got == feed.session.cached_len == 39
        with pytest.raises(SubscriberTooSlowError, match=f"more than {20 * row_bytes} bytes"):
            await soon(slow.subscription.next_frame())
        assert len((await soon(tokens_only.subscription.next_frame())).tokens) == 11

    async def test_what_is_read_no_longer_counts(self):
        row_bytes = 3 * HIDDEN * 4 + 8
        feed = await PlayedFeed(hub_of(max_bytes=12 * row_bytes)).open(expect=True)
        received = await feed.subscribe(2, 5, 9)
        for _ in range(30):
            feed.commit(1)
            assert await soon(received.subscription.next_frame())

    async def test_closing_a_session_ends_its_streams_after_what_was_sent(self):
        hub = hub_of()
        feed = await PlayedFeed(hub).open(expect=True)
        received = await feed.subscribe(2, 5, 9)
        feed.commit(1)
        hub.close(feed.session)
        assert (await soon(received.subscription.next_frame())).base_len == 0
        assert await soon(received.subscription.next_frame()) is None
        assert hub.num_subscriptions == 0

    async def test_a_closed_session_publishes_nothing(self):
        hub = hub_of()
        feed = await PlayedFeed(hub).open(expect=True)
        hub.close(feed.session)
        feed.commit(1)
        await feed.open(expect=True)
        assert (await feed.subscribe(2, 5, 9)).first_row == feed.session.cached_len

    async def test_who_unsubscribes_gets_nothing_more(self):
        hub = hub_of()
        feed = await PlayedFeed(hub).open(expect=True)
        received = await feed.subscribe(2, 5, 9)
        hub.unsubscribe("a", received.subscription)
        feed.commit(1)
        received.subscription.end()
        assert await soon(received.subscription.next_frame()) is None
        hub.unsubscribe("a", received.subscription)
        hub.unsubscribe("unknown", received.subscription)
        assert hub.num_subscriptions == 0


class TestAttaching:
    async def test_a_session_that_never_opens(self):
        with pytest.raises(KeyError, match="nobody"):
            await hub_of(attach_timeout_s=0.01).subscribe("nobody", reader(2), 0)

    async def test_subscribers_wait_for_a_session_that_is_about_to_open(self):
        hub = hub_of(attach_timeout_s=60)
        waiting = [asyncio.create_task(hub.subscribe(i, reader(2), 0)) for i in ("a", "a", "b")]
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in waiting)
        await PlayedFeed(hub, session_id="b").open(expect=True)
        await waiting[2]
        assert [task.done() for task in waiting] == [False, False, True]
        await PlayedFeed(hub, session_id="a").open(expect=True)
        await asyncio.gather(*waiting)
        assert hub.num_subscriptions == 3

    async def test_a_subscriber_that_gives_up_while_waiting_leaves_nothing(self):
        hub = hub_of(attach_timeout_s=60)
        waiting = asyncio.create_task(hub.subscribe("a", reader(2), 0))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await PlayedFeed(hub).open(expect=True)
        assert hub.num_subscriptions == 0

    async def test_nobody_knows_tokens_that_do_not_exist(self):
        feed = await PlayedFeed(hub_of()).open(expect=True)
        with pytest.raises(ValueError, match="known_len is 11, but only 10 tokens exist"):
            await feed.subscribe(2, known_len=11)
        assert feed.hub.num_subscriptions == 0

    async def test_a_refused_subscriber_leaves_the_backlog_to_the_right_one(self):
        feed = await PlayedFeed(hub_of()).open(expect=True)
        feed.commit(1)
        with pytest.raises(ValueError, match="known_len"):
            await feed.subscribe(2, known_len=99)
        assert (await feed.subscribe(2)).first_row == 0
