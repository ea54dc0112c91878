"""A step blocks in its own thread, and what it found is told on the loop that asked for it."""

import asyncio
import threading

from target_service.step_thread import StepThread
from tests.target_service.waiting import soon


class Engine:
    """Returns what it was given, from whatever thread; fails with "bad"; waits for the gate."""

    def __init__(self):
        self.gate = threading.Event()
        self.gate.set()
        self.threads = []

    def step(self, batch):
        assert self.gate.wait(30)
        self.threads.append(threading.current_thread())
        if "bad" in batch:
            raise RuntimeError("out of memory")
        return list(batch)


def submitted(thread, *batch):
    """Return a future of what is told, and of the thread it is told in."""
    future = asyncio.get_running_loop().create_future()
    told = lambda outcome: future.set_result((outcome, threading.current_thread()))  # noqa: E731
    thread.submit(batch, told)
    return future


async def test_steps_run_one_after_another_beside_the_loop_and_are_told_on_it():
    engine = Engine()
    thread = StepThread(engine)
    told = [await soon(future) for future in [submitted(thread, rows) for rows in "abc"]]
    assert [outcome for outcome, _ in told] == [["a"], ["b"], ["c"]]
    assert {where for _, where in told} == {threading.current_thread()}
    assert len(set(engine.threads)) == 1
    assert engine.threads[0] is not threading.current_thread()
    thread.stop()


async def test_a_step_that_fails_is_told_as_its_error_and_the_next_one_runs():
    thread = StepThread(Engine())
    bad, good = submitted(thread, "bad"), submitted(thread, "good")
    (error,), _ = await soon(bad)
    assert isinstance(error, RuntimeError)
    assert (await soon(good))[0] == ["good"]
    thread.stop()


async def test_who_fails_in_a_batch_fails_alone():
    thread = StepThread(Engine())
    (first, error, last), _ = await soon(submitted(thread, "first", "bad", "last"))
    assert (first, last) == ("first", "last")
    assert isinstance(error, RuntimeError)
    thread.stop()


async def test_stopping_waits_for_the_step_that_runs():
    """Otherwise the interpreter would end around a thread in native code."""
    engine = Engine()
    thread = StepThread(engine)
    engine.gate.clear()
    last = submitted(thread, "last")
    threading.Timer(0.05, engine.gate.set).start()
    thread.stop()
    assert len(engine.threads) == 1
    assert not engine.threads[0].is_alive()
    assert (await soon(last))[0] == ["last"]
