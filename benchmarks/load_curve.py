"""Throughput and latency from one stream to many: plain, fixed and automatic speculation.

    closed loop   a number of streams; each asks again as soon as it has its answer
    open loop     requests come at a rate, whether others are answered or not (Poisson)

No prompt is asked twice: each begins with a number of its own, and none is in the prefix cache. The
arms take turns at every point of the curve.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
from rich.progress import track

from benchmarks.arms import Arm, Wish
from benchmarks.interleaved import rotated
from benchmarks.load_window import Window, in_numbers
from benchmarks.streams import Answer, cancel, run_on, take
from slipstream.client import AsyncClient, Request
from slipstream.connection import messages
from slipstream.generate import Prompt

# How long all streams may take to their first tokens; until then a point is not like itself.
_MOST_RAMP_S = 60.0
_POLL_S = 0.02
_REFUSED_PAUSE_S = 0.1


# A number of streams, or a rate, and an arm.
Place = tuple[float, Arm]


@dataclass
class Asker:
    """Asks the prompts in turn, each with a number in front that no other has."""

    prompts: Sequence[Prompt]
    wish: Wish
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def requests(self, arm: Arm) -> Iterator[Request]:
        """Yield requests for ever, from the first prompt on."""
        options = arm.options(self.wish)
        for prompt in itertools.cycle(self.prompts):
            yield options.request(numbered(prompt, next(self._numbers)))


def numbered(prompt: Prompt, number: int) -> Prompt:
    """Return the prompt with a number in front of its first words."""
    if not prompt.messages:
        return replace(prompt, text=f"({number}) {prompt.text}")
    first = dict(prompt.messages[0])
    first["content"] = f"({number}) {first['content']}"
    return replace(prompt, messages=(first, *prompt.messages[1:]))


@dataclass
class Load:
    """Requests under way, and what came of them."""

    client: AsyncClient
    answers: list[Answer] = field(default_factory=list)
    refused: int = 0

    @property
    def num_begun(self) -> int:
        """How many answers have begun, or been refused."""
        return sum(bool(taken.times) for taken in self.answers) + self.refused

    async def ask(self, request: Request) -> None:
        """Take one answer. One that is refused because too many run is counted."""
        taken = Answer(time.perf_counter())
        self.answers.append(taken)
        try:
            await take(self.client, request, taken)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            self.refused += 1
            await asyncio.sleep(_REFUSED_PAUSE_S)

    async def ask_on(self, requests: Iterator[Request]) -> None:
        """Ask again as soon as there is an answer, for ever."""
        for request in requests:
            await self.ask(request)


async def closed_loop(
    client: AsyncClient, requests: Iterator[Request], streams: int, seconds: float
) -> Window:
    """Keep so many streams busy and, once all have begun, watch them for a while.

    Raises RpcError.
    """
    load = Load(client)
    asking = [asyncio.create_task(load.ask_on(requests)) for _ in range(streams)]
    patient_until = time.perf_counter() + _MOST_RAMP_S
    while load.num_begun < streams and time.perf_counter() < patient_until:
        await run_on(asking, _POLL_S)
    begin = time.perf_counter()
    await run_on(asking, seconds)
    end = time.perf_counter()
    await cancel(asking)
    return Window(load.answers, begin, end, load.refused)


async def open_loop(
    client: AsyncClient, requests: Iterator[Request], rate: float, seconds: float, seed: int
) -> Window:
    """Let requests come at a rate (1/s) for a while, and wait for the last of them.

    All of it counts: leaving out those that came late would hide how long they waited. Raises
    RpcError.
    """
    load = Load(client)
    asking = []
    begin = time.perf_counter()
    for arrival in arrivals(rate, seconds, seed):
        await asyncio.sleep(max(begin + arrival - time.perf_counter(), 0))
        asking.append(asyncio.create_task(load.ask(next(requests))))
    await asyncio.gather(*asking)
    return Window(load.answers, begin, time.perf_counter(), load.refused)


def arrivals(rate: float, seconds: float, seed: int) -> list[float]:
    """Return when requests come: at least one, the first at once."""
    choices = random.Random(seed)
    gaps = (choices.expovariate(rate) for _ in itertools.count())
    moments = itertools.accumulate(gaps, initial=0.0)
    return list(itertools.takewhile(lambda moment: moment < seconds, moments))


@dataclass(frozen=True)
class Points:
    """Where the curves are measured."""

    streams: Sequence[int]
    rates: Sequence[float]
    seconds: float
    passes: int


async def measure_curves(
    client: AsyncClient, asker: Asker, arms: Sequence[Arm], points: Points
) -> dict[str, Any]:
    """Measure both loops. Raises RpcError."""
    closed: dict[Place, list[Window]] = {}
    opened: dict[Place, list[Window]] = {}
    for _, streams, arm in _turns(arms, points.streams, points.passes, "closed loop"):
        window = await closed_loop(client, asker.requests(arm), int(streams), points.seconds)
        closed.setdefault((streams, arm), []).append(window)
    for turn, rate, arm in _turns(arms, points.rates, points.passes, "open loop"):
        window = await open_loop(client, asker.requests(arm), rate, points.seconds, turn)
        opened.setdefault((rate, arm), []).append(window)
    return {
        "closed_loop": _in_order("streams", arms, closed),
        "open_loop": _in_order("requests_per_second", arms, opened),
    }


def _turns(
    arms: Sequence[Arm], values: Sequence[float], passes: int, name: str
) -> Iterable[tuple[int, float, Arm]]:
    """Yield what to measure: at every value all arms in turn, in an order that changes."""
    turns = [
        (turn, value, arm)
        for turn, (_, value) in enumerate(itertools.product(range(passes), values))
        for arm in rotated(arms, turn)
    ]
    return track(turns, name, console=messages, transient=True)


def _in_order(
    name: str, arms: Sequence[Arm], windows: Mapping[Place, Sequence[Window]]
) -> list[dict[str, Any]]:
    places = sorted(windows, key=lambda place: (place[0], arms.index(place[1])))
    return [
        {name: place[0], "arm": place[1].name, **in_numbers(windows[place])} for place in places
    ]
