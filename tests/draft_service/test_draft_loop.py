"""The thread between frames and outboxes: nothing waits in vain, overflows or is left behind."""

import asyncio
import threading

import pytest

from draft_service.draft_loop import DraftLoop
from draft_service.drafters.ngram import NgramDrafter
from draft_service.following import MAX_IN_FLIGHT, Following
from draft_service.load import Load
from draft_service.loader import DrafterSpec
from draft_service.registry import Registry
from draft_service.session import DraftSession
from draft_service.standings import Standings
from protos.messages import Plan, SamplingParams
from tests.draft_service.noting_drafter import NotingDrafter, following, frame
from tests.loopback import eventually


def draft_loop() -> DraftLoop:
    registry = Registry([DrafterSpec("ngram", None)], 64)
    return DraftLoop(Load(registry), Standings(registry))


@pytest.fixture
async def loop():
    drafts = draft_loop()
    yield drafts
    drafts.stop()


class Gate(NotingDrafter):
    """Takes rows in only while the gate is open."""

    def __init__(self):
        super().__init__()
        self.open = threading.Event()
        self.entered = threading.Event()

    def extend(self, batch):
        self.entered.set()
        assert self.open.wait(60)
        super().extend(batch)


async def entered(gate):
    assert await asyncio.to_thread(gate.entered.wait, 60)


async def test_a_frame_becomes_a_tree_in_the_outbox(loop):
    followed = following(NotingDrafter())
    await loop.take(followed, frame(0, [8, 9]))

    assert (await followed.outbox.get()).tokens == (9, 1, 2, 3)


async def test_frames_that_arrive_while_a_batch_runs_make_the_next_one(loop):
    """Of all sessions together."""
    gate = Gate()
    sessions = [following(gate) for _ in range(5)]
    await loop.take(sessions[0], frame(0, [8, 9]))
    await entered(gate)
    for followed in sessions[1:]:
        await loop.take(followed, frame(0, [8, 9]))
    gate.open.set()
    trees = [await followed.outbox.get() for followed in sessions]

    assert [len(batch) for batch in gate.extended] == [1, 4]
    assert len(trees) == 5
    assert loop.load.batches == 2


async def test_a_drafter_that_takes_no_time_waits_for_no_thread(loop):
    """Its tree is there while another one's batch runs."""
    gate, followed = Gate(), following(NgramDrafter("ngram", 50, 1000), plan=Plan(steps=2))
    await loop.take(following(gate), frame(0, [8, 9]))
    await entered(gate)

    await loop.take(followed, frame(0, [8, 9, 7, 8, *[5] * 500]))
    tree = await followed.outbox.get()
    gate.open.set()

    assert tree.tokens == (5, 5, 5)


async def test_a_drafter_that_lags_holds_the_frames_back(loop):
    """Only until it has caught up."""
    gate = Gate()
    followed = following(gate)

    async def send():
        for row in range(3 * MAX_IN_FLIGHT):
            await loop.take(followed, frame(row, [8]))

    sending = asyncio.create_task(send())
    await entered(gate)
    await eventually(followed.in_flight.locked)
    assert not sending.done()
    gate.open.set()
    await asyncio.wait_for(sending, 60)

    await eventually(lambda: followed.session.next_row == 3 * MAX_IN_FLIGHT)
    assert sum(len(rows.tokens) for batch in gate.extended for rows in batch) == 3 * MAX_IN_FLIGHT


async def test_what_a_running_batch_uses_is_freed_after_it(loop):
    gate = Gate()
    followed = following(gate)
    await loop.take(followed, frame(0, [8, 9]))
    await entered(gate)

    loop.close(followed)
    assert gate.kv_usage.used == 1
    gate.open.set()

    await eventually(lambda: gate.kv_usage.used == 0)


async def test_a_shadow_runs_when_nothing_else_is_to_be_done(loop):
    """Frames of served sessions go first though they came later."""
    order = []

    class Ordered(Gate):
        def extend(self, batch):
            super().extend(batch)
            order.append(self)

    gate, candidate = Ordered(), Ordered()
    candidate.open.set()
    session = DraftSession("s", "b", [7, 8, 9], SamplingParams(), Plan(steps=3))
    session.attach([], 0)
    shadow = Following.shadow(session, candidate, candidate.pairing.tap_layers, asyncio.Semaphore())
    served = [following(gate) for _ in range(2)]
    await loop.take(served[0], frame(0, [8, 9]))
    await entered(gate)
    await loop.take(shadow, frame(0, [8, 9]))
    await loop.take(served[1], frame(0, [8, 9]))
    gate.open.set()

    await eventually(lambda: len(order) == 3)
    assert order == [gate, gate, candidate]
    assert [await one.outbox.get() for one in served]


async def test_errors_reach_the_client(loop):
    followed = following(NotingDrafter())
    await loop.take(followed, frame(3, [8]))

    with pytest.raises(ValueError, match="begins at row 3, expected 0"):
        await followed.outbox.get()


async def test_stopping_waits_for_the_batch_that_runs():
    drafts, gate = draft_loop(), Gate()
    await drafts.take(following(gate), frame(0, [8, 9]))
    await entered(gate)
    stopping = asyncio.create_task(asyncio.to_thread(drafts.stop))
    gate.open.set()
    await stopping

    assert len(gate.drafted) == 1
