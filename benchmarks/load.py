"""How a local stack serves many requests at once, against one at a time, in one run.

    throughput   one stream plain, 8 and 32 plain, 8 speculated, in turn: tokens a second of all
    intrusion    how much longer others wait for a chunk while a long prompt arrives
    prefix       the time to the first token of a prompt whose beginning is known, against unknown

Every figure is a ratio to another of the same run. What happens between one stream and many is in
`load_curve.py`; `slipstream bench load` measures both.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.streams import Answer, answer, run_on, take
from slipstream.client import AsyncClient, Request

ARMS = {"1 plain": (1, "off"), "8 plain": (8, "off"), "32 plain": (32, "off")}
ARMS["8 speculated"] = (8, "fixed")
_NEW_TOKENS = 96
_LONG_PROMPT_TOKENS = 1500
_USUAL_CHUNKS = 20
_PREFIX_TOKENS = 1000
_TOPICS = ("rivers", "bread", "the moon", "chess", "bees", "glass", "winter", "maps")
_WORDS = ("river", "stone", "light", "old", "garden", "letter", "winter", "bridge", "cloud")


def list_request(number: int, mode: str, new_tokens: int = _NEW_TOKENS) -> Request:
    """Ask for something that repeats itself, each request about something else."""
    topic = f"{_TOPICS[number % len(_TOPICS)]} number {number}"
    return Request(
        chat=f"Write a numbered list of short facts about {topic}, one on each line.",
        sampling={"temperature": 0.0},
        stopping={"max_new_tokens": new_tokens, "ignore_eos": True},
        speculation={"steps": 4},
        mode=mode,
    )


async def rate_of(client: AsyncClient, streams: int, mode: str) -> float:
    """Return tokens a second of all streams, while all of them run."""
    return await rate_of_requests(client, [list_request(number, mode) for number in range(streams)])


async def rate_of_requests(client: AsyncClient, requests: Sequence[Request]) -> float:
    """Return tokens a second of requests answered side by side, while all of them run."""
    answers = await asyncio.gather(*(answer(client, request) for request in requests))
    first = max(taken.times[0] for taken in answers)
    last = min(taken.times[-1] for taken in answers)
    return sum(taken.tokens_between(first, last) for taken in answers) / (last - first)


async def measure_throughput(client: AsyncClient, repeats: int) -> dict[str, Any]:
    """Return the rates of all arms, which take turns, and the medians of their ratios."""
    rates: dict[str, list[float]] = {name: [] for name in ARMS}
    for _ in range(repeats):
        for name, (streams, mode) in ARMS.items():
            rates[name].append(await rate_of(client, streams, mode))
    return {
        "tokens_per_second": {name: spread(values) for name, values in rates.items()},
        "over_1_plain": {name: spread(ratios(rates[name], rates["1 plain"])) for name in ARMS},
        "speculated_over_plain_at_8": spread(ratios(rates["8 speculated"], rates["8 plain"])),
    }


def ratios(values: Sequence[float], others: Sequence[float]) -> list[float]:
    """Return the ratio of each pair of runs."""
    return [value / other for value, other in zip(values, others, strict=True)]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, least and most."""
    return {
        "median": round(statistics.median(values), 3),
        "least": round(min(values), 3),
        "most": round(max(values), 3),
    }


def prose(num_words: int, seed: int) -> str:
    """Return words in no order: about a token each."""
    choices = random.Random(seed)
    return " ".join(choices.choice(_WORDS) for _ in range(num_words))


def long_request(num_words: int, seed: int, ending: str = "", new_tokens: int = 1) -> Request:
    """A prompt of so many words and, behind them, an ending."""
    return Request(
        text=f"{prose(num_words, seed)} {ending}",
        sampling={"temperature": 0.0},
        stopping={"max_new_tokens": new_tokens, "ignore_eos": True},
        mode="off",
    )


async def measure_intrusion(client: AsyncClient, repeats: int) -> dict[str, Any]:
    """Return by how much chunks are late while a long prompt prefills, in prefill-chunk times."""
    late = []
    for repeat in range(repeats):
        usual = [Answer(time.perf_counter()) for _ in range(4)]
        others = [
            asyncio.create_task(take(client, list_request(number, "off", 300), one))
            for number, one in enumerate(usual)
        ]
        while min(len(one.times) for one in usual) < _USUAL_CHUNKS:
            await run_on(others, 0.05)
        begun = time.perf_counter()
        intruder = await answer(client, long_request(_LONG_PROMPT_TOKENS, seed=repeat))
        await asyncio.gather(*others)
        late.append(_lateness(usual, begun, intruder))
    return {
        "worst_gap_ms": spread([one["worst_ms"] for one in late]),
        "usual_gap_ms": spread([one["usual_ms"] for one in late]),
        "delay_in_chunk_times": spread([one["delay"] for one in late]),
    }


def _lateness(others: Sequence[Answer], begun: float, intruder: Answer) -> dict[str, float]:
    """Compare gaps while the prompt was computed with those before it came.

    A prefill-chunk time is the median gap while it is computed less the usual one: every step of
    that time carries one chunk.
    """
    before, during = [], []
    for other in others:
        for at, gap in zip(other.times[1:], other.gaps, strict=True):
            if at < begun:
                before.append(gap)
            elif at <= intruder.times[0]:
                during.append(gap)
    usual = statistics.median(before)
    chunk = statistics.median(during)
    worst = max(during)
    return {
        "usual_ms": usual * 1000,
        "worst_ms": worst * 1000,
        "delay": (worst - usual) / chunk,
    }


async def measure_prefix(client: AsyncClient, repeats: int) -> dict[str, Any]:
    """Return the time to the first token of a known beginning over that of an unknown one."""
    ratios, cached = [], []
    for repeat in range(repeats):
        firsts = []
        for ending in ("What is this about?", "Which word comes most often?"):
            request = long_request(_PREFIX_TOKENS, 1000 + repeat, ending, new_tokens=8)
            taken = await answer(client, request)
            assert taken.finish is not None, "an answer ends with a finish"
            firsts.append(taken.times[0] - taken.started)
            cached.append(taken.finish.usage.cached_prompt_tokens)
        ratios.append(firsts[1] / firsts[0])
    return {"second_over_first": spread(ratios), "cached_prompt_tokens": cached}


async def measure_ratios(client: AsyncClient, repeats: int) -> dict[str, Any]:
    """Run all parts, one after the other."""
    await rate_of(client, 2, "fixed")
    return {
        "throughput": await measure_throughput(client, repeats),
        "intrusion": await measure_intrusion(client, repeats),
        "prefix": await measure_prefix(client, repeats),
    }
