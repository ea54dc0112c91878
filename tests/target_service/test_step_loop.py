"""Steps go on whatever sessions do; what a session held is given back exactly once."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protos import tensors
from protos.messages import DraftTree, SamplingParams, Verdict
from protos.pairing import Pairing
from target_service.engine import Outcome
from target_service.kv_memory import PAGE_LEN, KvMemory
from target_service.scheduler import QueueFullError, Scheduler
from target_service.session import Rows, Session
from target_service.step_loop import LiveSession, StepLoop
from target_service.taps import TapHub
from tests.target_service.waiting import soon, until

TAPPED = Pairing(hidden_size=3, vocab_size=50, tap_layers=(0,), tap_dtype=1)
BONUS = 7


class ScriptedEngine:
    """Accepts no draft and says BONUS, when it is let; fails for sessions in `broken`."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Event()
        self.broken: set[str] = set()
        self.delay_s = 0.0
        self.steps: list[list[tuple[str, int]]] = []

    def step(self, batch: Sequence[Rows]) -> list[Outcome]:
        time.sleep(self.delay_s)
        self.steps.append([(rows.session.session_id, len(rows.tokens)) for rows in batch])
        self.started.set()
        assert self.gate.wait(30)
        if self.broken & {rows.session.session_id for rows in batch}:
            raise RuntimeError("out of memory")
        return [self.outcome(rows) for rows in batch]

    def outcome(self, rows: Rows) -> Outcome:
        if rows.root is None:
            return Outcome(rows, None, torch.zeros(len(rows.tokens), 3))
        verdict = Verdict(rows.session.committed_len, (), (BONUS,), (0.0,))
        return Outcome(rows, verdict, torch.zeros(rows.root + 1, 3))

    def stored_taps(self, pages: Sequence[int], positions: range) -> torch.Tensor:
        """Taps that tell that they were stored."""
        assert len(pages) * PAGE_LEN >= positions.stop
        return torch.ones(len(positions), 3)


class Target:
    """A step loop with its parts in reach."""

    def __init__(self, engine: ScriptedEngine, kv_tokens: int, max_sessions: int) -> None:
        self.engine = engine
        self.memory = KvMemory(kv_tokens // PAGE_LEN)
        self.scheduler = Scheduler(
            self.memory, step_rows=128, chunk_len=4, max_sessions=max_sessions
        )
        self.hub = TapHub(TAPPED, max_bytes=2**20, attach_timeout_s=5)
        self.loop = StepLoop(engine, self.scheduler, self.hub)

    async def open(self, session_id: str = "a", prompt_len: int = 1) -> LiveSession:
        session = Session(session_id, [1] * prompt_len, SamplingParams(), 100, 50)
        return await self.loop.open(session, expect_taps=True)

    def verify(self, live: LiveSession, *drafts: int) -> None:
        tokens = (live.session.tokens[-1], *drafts)
        self.loop.verify(live, DraftTree.chain(live.session.committed_len, tokens))

    async def holding(self) -> None:
        """Wait until a step has begun; it goes on when the gate opens."""
        await asyncio.to_thread(self.engine.started.wait, 30)

    async def idle(self) -> None:
        self.engine.gate.set()
        await until(lambda: not (self.scheduler.num_ready or self.loop.is_running))

    async def settled(self) -> None:
        """Wait until no step runs, whoever waits for one."""
        await until(lambda: not self.loop.is_running)

    async def empty(self) -> None:
        """Wait until everything is given back."""
        self.engine.gate.set()
        await until(lambda: not self.memory.num_held)
        held = (self.scheduler.num_sessions, self.scheduler.num_ready, self.hub.num_subscriptions)
        assert held == (0, 0, 0)


@asynccontextmanager
async def stepping(*, kv_tokens: int = 4096, max_sessions: int = 8) -> AsyncIterator[Target]:
    target = Target(ScriptedEngine(), kv_tokens, max_sessions)
    task = asyncio.create_task(target.loop.serve())
    try:
        yield target
        assert not task.done(), "the loop must outlive everything"
    finally:
        target.engine.gate.set()
        task.cancel()


EVENTS = st.lists(
    st.sampled_from(["open", "verify", "close", "turn", "hold", "release", "settle"]), max_size=30
)


@settings(max_examples=60)
@given(events=EVENTS, which=st.randoms(use_true_random=False))
async def test_every_page_comes_back_whatever_happens_when(events, which):
    """Sessions are closed at any moment: waiting, running, done, between two chunks."""
    async with stepping() as target:
        live: list[LiveSession] = []
        for number, event in enumerate(events):
            one = which.choice(live) if live else None
            if event == "open" and len(live) < 8:
                live.append(await target.open(f"s{number}", which.randint(1, 12)))
            elif event == "verify" and one and one.session.tree is None:
                target.verify(one)
            elif event == "close" and one:
                live.remove(one)
                target.loop.close(one)
            elif event == "turn":
                await asyncio.sleep(0)
            elif event == "hold":
                target.engine.gate.clear()
            elif event == "release":
                target.engine.gate.set()
            elif event == "settle":
                await target.idle()
            assert target.scheduler.num_sessions == len(live)
        await target.idle()
        for one in live:
            assert one.verdicts.qsize() == one.session.num_new_tokens > 0
            target.loop.close(one)
        await target.empty()


@pytest.mark.parametrize("prompt_len", [1, 9])
async def test_pages_of_a_session_closed_while_its_step_runs_go_to_nobody_before_it_ends(
    prompt_len,
):
    """The step still writes into them. What it finds out is nobody's any more."""
    async with stepping() as target:
        target.engine.gate.clear()
        live = await target.open(prompt_len=prompt_len)
        await target.holding()
        target.loop.close(live)
        assert target.scheduler.num_sessions == 0
        other = await target.open("other")
        assert other.session.memory.pages == []
        await target.idle()
        assert other.session.memory.pages
        target.loop.close(other)
        await target.empty()
        assert live.verdicts.empty()
        assert live.session.num_new_tokens == 0
        assert [len(step) for step in target.engine.steps] == [1, 1]


async def test_an_id_reopened_while_its_old_step_runs_hears_only_its_own():
    async with stepping() as target:
        target.engine.gate.clear()
        old = await target.open()
        await target.holding()
        target.loop.close(old)
        new = await target.open(prompt_len=3)
        subscription, _, first_row = await target.hub.subscribe("a", TAPPED, 3)
        target.engine.gate.set()
        assert (await soon(new.verdicts.get())).committed_len == 3
        frame = await soon(subscription.next_frame())
        assert (first_row, frame.base_len, len(frame.tokens)) == (0, 0, 3)
        assert old.verdicts.empty()
        target.loop.close(new)
        await target.empty()


async def test_a_step_that_fails_ends_its_session_and_no_other():
    async with stepping() as target:
        target.engine.broken = {"bad"}
        bad, good = await target.open("bad"), await target.open("good", 9)
        error = await soon(bad.verdicts.get())
        assert isinstance(error, RuntimeError)
        assert str(error) == "out of memory"
        assert (await soon(good.verdicts.get())).tokens == (BONUS,)
        target.loop.close(bad)
        target.verify(good)
        assert (await soon(good.verdicts.get())).committed_len == 10
        target.loop.close(good)
        await target.empty()


async def test_a_session_closed_while_its_step_fails_gives_its_slots_back():
    async with stepping() as target:
        target.engine.broken = {"a"}
        target.engine.gate.clear()
        live = await target.open()
        await target.holding()
        target.loop.close(live)
        await target.empty()


class TestOpening:
    async def test_too_many_sessions_leave_nothing_behind(self):
        async with stepping(max_sessions=1) as target:
            first = await target.open("first")
            with pytest.raises(QueueFullError, match="1 of 1 sessions are open"):
                await target.open("second")
            assert target.scheduler.num_sessions == 1
            assert (await soon(first.verdicts.get())).tokens == (BONUS,)
            target.loop.close(first)
            target.loop.close(await target.open("second"))
            await target.empty()

    async def test_an_id_in_use_leaves_its_owner_alone(self):
        async with stepping() as target:
            first = await target.open("same")
            with pytest.raises(KeyError, match="same"):
                await target.open("same")
            assert (await soon(first.verdicts.get())).tokens == (BONUS,)


class TestBatches:
    async def test_sessions_that_wait_for_a_step_share_the_next(self):
        async with stepping() as target:
            target.engine.gate.clear()
            await target.open("first")
            await target.holding()
            for name in ("second", "third"):
                await target.open(name)
            await target.idle()
            assert target.engine.steps == [[("first", 1)], [("second", 1), ("third", 1)]]

    async def test_a_run_takes_a_step_a_token_and_shares_it(self):
        async with stepping() as target:
            target.engine.gate.clear()
            running, asked = await target.open("runs"), await target.open("asked", 3)
            target.loop.run(running, 4)
            target.engine.gate.set()
            await soon(asked.verdicts.get())
            await target.idle()
            lengths = [(await soon(running.verdicts.get())).committed_len for _ in range(3)]
            assert lengths == [1, 2, 3]
            assert running.verdicts.empty()
            assert len(target.engine.steps) == 3

    async def test_sessions_in_rounds_are_waited_for_a_moment(self):
        """The first one back would have a step alone, and all others wait for it."""
        async with stepping() as target:
            target.engine.delay_s = 0.2
            lives = [await target.open(name) for name in "abc"]
            await target.idle()
            for _ in range(2):
                for live in lives:
                    target.verify(live)
                    await asyncio.sleep(0.02)
                await target.idle()
            # Nobody knew in the first round that the others would be back.
            shared = [len(step) for step in target.engine.steps]
            assert shared[-1] == 3
            assert sum(shared) == 9
            assert len(shared) > 3

    async def test_but_not_for_ever(self):
        async with stepping() as target:
            one, other = await target.open("one"), await target.open("other")
            await target.idle()
            target.verify(one)
            target.verify(other)
            await target.idle()
            target.verify(one)
            await soon(one.verdicts.get())
            await soon(one.verdicts.get())
            assert (await soon(one.verdicts.get())).committed_len == 3
            assert other.session.tree is None

    async def test_and_not_by_those_who_run(self):
        async with stepping() as target:
            target.engine.delay_s = 0.1
            asked, running = await target.open("asked"), await target.open("runs")
            await target.idle()
            target.engine.steps.clear()
            target.loop.run(running, 4)
            await target.idle()
            assert target.engine.steps == [[("runs", 1)]] * 2
            assert asked.session.tree is None

    async def test_who_waits_for_pages_runs_as_soon_as_they_are_there(self):
        async with stepping(kv_tokens=3 * PAGE_LEN) as target:
            first = await target.open("first", 150)
            await soon(first.verdicts.get())
            second = await target.open("second", 5)
            await target.settled()
            assert second.verdicts.empty()
            target.loop.close(first)
            assert (await soon(second.verdicts.get())).committed_len == 5

    async def test_or_as_soon_as_others_have_long_been_silent(self):
        async with stepping(kv_tokens=3 * PAGE_LEN) as target:
            first = await target.open("first", 150)
            await soon(first.verdicts.get())
            second = await target.open("second", 5)
            assert (await soon(second.verdicts.get())).committed_len == 5
            target.verify(first)
            assert (await soon(first.verdicts.get())).committed_len == 151


class TestTaps:
    async def test_a_text_known_already_is_told_from_what_was_stored(self):
        """A drafter needs the whole context, however little of it was computed for this session."""
        async with stepping() as target:
            first = await target.open("first", 150)
            await soon(first.verdicts.get())
            second = await target.open("second", 150)
            assert second.cached_prompt_tokens == 2 * PAGE_LEN
            subscription, _, first_row = await target.hub.subscribe("second", TAPPED, 150)
            assert first_row == 0
            stored = []
            while len(stored) < 150:
                frame = await soon(subscription.next_frame())
                assert frame.base_len == len(stored)
                stored += tensors.from_proto(frame.taps)[:, 0].tolist()
            assert stored == [1.0] * 128 + [0.0] * 22

    async def test_rows_computed_again_are_not_told_again(self):
        async with stepping(kv_tokens=3 * PAGE_LEN) as target:
            first = await target.open("first", 150)
            subscription, _, _ = await target.hub.subscribe("first", TAPPED, 150)
            await soon(first.verdicts.get())
            second = await target.open("second", 140)
            await soon(second.verdicts.get())
            assert first.session.cached_len == 0
            target.loop.close(second)
            target.verify(first)
            await soon(first.verdicts.get())
            told = 0
            while told < 151:
                frame = await soon(subscription.next_frame())
                assert frame.base_len == told
                told += len(frame.tokens)


class TestVerdicts:
    async def test_one_for_the_prompt_and_one_for_every_tree(self):
        async with stepping() as target:
            live = await target.open(prompt_len=10)
            lengths = []
            for _ in range(5):
                lengths.append((await soon(live.verdicts.get())).committed_len)
                target.verify(live, 3, 4)
            assert lengths == [10, 11, 12, 13, 14]
            assert [rows for ((_, rows),) in target.engine.steps[:4]] == [4, 4, 2, 3]

    async def test_a_stale_tree_costs_no_step(self):
        async with stepping() as target:
            live = await target.open()
            await soon(live.verdicts.get())
            target.loop.verify(live, DraftTree.plain(1, 1))
            await target.idle()
            assert len(target.engine.steps) == 1
            assert live.verdicts.empty()

    async def test_a_wrong_tree_is_the_senders_mistake_and_costs_no_step(self):
        async with stepping() as target:
            live = await target.open()
            await soon(live.verdicts.get())
            with pytest.raises(ValueError, match=r"tree\.committed_len is 9"):
                target.loop.verify(live, DraftTree.plain(9, BONUS))
            target.verify(live)
            assert (await soon(live.verdicts.get())).committed_len == 2

    async def test_they_tell_how_long_a_tree_waited_for_its_step(self):
        async with stepping() as target:
            target.engine.gate.clear()
            first = await target.open("first")
            await target.holding()
            second = await target.open("second")
            await asyncio.sleep(0.02)
            target.engine.gate.set()
            assert (await soon(second.verdicts.get())).timings.queue_us >= 20_000
            assert (await soon(first.verdicts.get())).timings.queue_us >= 0
