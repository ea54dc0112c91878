"""Loops keep their load up, ask nothing twice, and leave nothing behind."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter

import grpc
import pytest

from benchmarks import load_report
from benchmarks.arms import AUTO, PLAIN, Arm, Wish
from benchmarks.load_curve import Asker, Points, arrivals, closed_loop, measure_curves, open_loop
from benchmarks.machine import describe
from benchmarks.reports import write
from protos import gateway_pb2 as pb
from protos.messages import Plan
from slipstream.generate import Prompt

ARMS = [PLAIN, Arm.fixed(Plan(2, 1, 3)), AUTO]
TALK = Prompt("", "t", ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}))


class Gateway:
    """Answers in two chunks, a moment apart; refuses, or breaks, when it is told to."""

    def __init__(self, error: grpc.StatusCode | None = None):
        self.error = error
        self.running = 0
        self.most = 0
        self.asked: list[str] = []

    async def stream(self, request):
        self.asked.append(request.to_proto().chat.messages[0].content)
        if self.error is not None:
            raise grpc.aio.AioRpcError(self.error, grpc.aio.Metadata(), grpc.aio.Metadata())
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            yield pb.GenerateResponse(token_ids=[1])
            await asyncio.sleep(0.005)
            yield pb.GenerateResponse(token_ids=[2, 3], finish=pb.FinishInfo())
        finally:
            self.running -= 1


def asker() -> Asker:
    return Asker([Prompt("one", "t"), TALK], Wish(8))


async def test_a_closed_loop_keeps_its_streams_busy_and_ends_them():
    gateway = Gateway()
    window = await closed_loop(gateway, asker().requests(PLAIN), 5, 0.1)
    assert gateway.most == 5
    assert gateway.running == 0
    assert len(window.answers) > 5
    assert window.tokens_per_second > 0


async def test_a_closed_loop_is_watched_once_all_streams_have_begun():
    """However long that takes: here the gateway serves one after the other."""
    turn = asyncio.Lock()

    class Slow(Gateway):
        async def stream(self, request):
            async with turn:
                await asyncio.sleep(0.01)
            async for chunk in super().stream(request):
                yield chunk

    window = await closed_loop(Slow(), asker().requests(PLAIN), 8, 0.05)
    began = [taken.times[0] for taken in window.answers[:8]]
    assert max(began) <= window.begin


async def test_an_open_loop_asks_at_its_times_and_waits_for_the_last():
    gateway = Gateway()
    window = await open_loop(gateway, asker().requests(PLAIN), 100, 0.1, seed=1)
    assert len(window.answers) == len(arrivals(100, 0.1, 1))
    assert all(taken.finish is not None for taken in window.answers)


async def test_nothing_is_asked_twice_and_conversations_stay_whole():
    gateway, numbered = Gateway(), asker()
    for arm in ARMS:
        await closed_loop(gateway, numbered.requests(arm), 3, 0.03)
    assert max(Counter(gateway.asked).values()) == 1
    assert {text.rpartition(" ")[2] for text in gateway.asked} == {"one", "hi"}
    talk = next(itertools.islice(numbered.requests(PLAIN), 1, None)).to_proto().chat.messages
    assert [message.content for message in talk][1:] == ["yes"]


@pytest.mark.parametrize("loop", ["closed", "open"])
async def test_what_the_gateway_has_no_room_for_is_counted(loop):
    gateway, requests = Gateway(grpc.StatusCode.RESOURCE_EXHAUSTED), asker().requests(PLAIN)
    if loop == "closed":
        window = await closed_loop(gateway, requests, 2, 0.02)
    else:
        window = await open_loop(gateway, requests, 50, 0.02, seed=0)
    assert window.refused >= 1
    assert window.tokens_per_second == 0


@pytest.mark.parametrize("loop", ["closed", "open"])
async def test_any_other_error_ends_the_measurement(loop):
    gateway, requests = Gateway(grpc.StatusCode.UNAVAILABLE), asker().requests(PLAIN)
    run = {"closed": closed_loop(gateway, requests, 2, 5)}
    run["open"] = open_loop(gateway, requests, 50, 0.02, seed=0)
    with pytest.raises(grpc.aio.AioRpcError):
        await run.pop(loop)
    for other in run.values():
        other.close()


def test_arrivals_come_at_their_rate_the_first_at_once_and_are_repeatable():
    moments = arrivals(50, 100, seed=3)
    assert moments[0] == 0
    assert moments == sorted(moments)
    assert len(moments) == pytest.approx(5000, rel=0.06)
    assert moments == arrivals(50, 100, seed=3)


async def test_curves_have_a_point_for_every_arm_and_are_shown(tmp_path):
    curves = await measure_curves(Gateway(), asker(), ARMS, Points([1, 2], [40.0], 0.03, 2))
    closed = [(point["streams"], point["arm"]) for point in curves["closed_loop"]]
    assert closed == list(itertools.product([1, 2], ["plain", "2x1x3", "auto"]))
    assert [point["requests_per_second"] for point in curves["open_loop"]] == [40.0] * 3
    spread = {"median": 1, "least": 1, "most": 1}
    report = {
        "what": "a test",
        "machine": describe(None),
        "throughput": {"over_1_plain": {"8 plain": spread}, "speculated_over_plain_at_8": spread},
        "intrusion": {"delay_in_chunk_times": spread},
        "prefix": {"second_over_first": spread},
        **curves,
    }
    page = load_report.markdown(report)
    paths = write(report, load_report, tmp_path / "load.json")
    assert paths[2].read_bytes().startswith(b"\x89PNG")
    assert page.count("| auto |") == 3
