"""The arms take turns: a cycle is one request of each, or many at once, with the same prompts."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.adversity.cycle import Cycle, Run
from benchmarks.adversity.disturbance import Disturbance
from benchmarks.adversity.scenario import Phase, RowCost
from benchmarks.arms import Arm, Wish
from benchmarks.interleaved import TextsDifferError
from benchmarks.streams import Answer, answer
from protos.gateway_pb2 import SpeculationStats
from slipstream.client import AsyncClient, Request
from slipstream.generate import Prompt

# A second or two, so that arms take turns quickly.
_NEW_TOKENS = 96
# A rate needs a few rounds.
_FEWEST_TOKENS = 4
# No machine is so slow: an answer that takes longer will never come.
_PATIENCE_S = 300
_CALIBRATION_PROMPTS = 3


def requests_of(arm: Arm, prompts: Sequence[Prompt]) -> list[Request]:
    """Return an arm's requests to be answered at once.

    Several go on behind their natural end: else fewer and fewer would be left.
    """
    options = arm.options(Wish(_NEW_TOKENS))
    endless = {**options.stopping, "ignore_eos": len(prompts) > 1}
    return [replace(options, stopping=endless).request(prompt) for prompt in prompts]


async def answer_all(client: AsyncClient, requests: Sequence[Request]) -> list[Answer]:
    """Take the answers to requests that are made at once."""
    return await asyncio.gather(*(answer(client, request) for request in requests))


@dataclass(frozen=True)
class Clients:
    """Of the gateway that answers auto, and of the one that answers all others."""

    auto: AsyncClient
    others: AsyncClient

    def of(self, arm: Arm) -> AsyncClient:
        """Return the client that an arm asks."""
        return self.auto if arm.mode == "auto" else self.others


class Timeline:
    """Runs cycles, on a seeded order of prompts and of arms."""

    def __init__(
        self, clients: Clients, arms: Sequence[Arm], prompts: Sequence[Prompt], seed: int
    ) -> None:
        self._clients = clients
        self._arms = list(arms)
        self._chance = random.Random(seed)
        self._prompts = self._chance.sample(prompts, len(prompts))
        self._turn = 0

    async def cycle(self, phase: int, sessions: int) -> Cycle:
        """Let every arm answer the next prompts that have answers long enough, so many at once.

        Raises TextsDifferError, TimeoutError, or ValueError if no prompt has one.
        """
        for _ in self._prompts:
            answers = await self._answers(self._next_prompts(sessions))
            if all(len(one.token_ids) >= _FEWEST_TOKENS for one in answers["plain"]):
                return Cycle(phase, {arm.name: run_of(answers[arm.name]) for arm in self._arms})
        raise ValueError(f"no prompt is answered with {_FEWEST_TOKENS} tokens or more")

    async def _answers(self, prompts: Sequence[Prompt]) -> Mapping[str, Sequence[Answer]]:
        answers = {}
        for arm in self._chance.sample(self._arms, len(self._arms)):
            answers[arm.name] = await self._answers_of(arm, prompts)
        check_texts(prompts, answers)
        return answers

    async def _answers_of(self, arm: Arm, prompts: Sequence[Prompt]) -> list[Answer]:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await answer_all(self._clients.of(arm), requests_of(arm, prompts))
        except TimeoutError:
            raise TimeoutError(f"{arm.name} does not answer within {_PATIENCE_S} s") from None

    async def measure_row_cost(self) -> RowCost:
        """Return what rows of the target cost, from plain answers and the widest fixed arm's.

        Drafts should be random: then there is one of every width that is asked for.
        """
        widest = max(self._arms, key=lambda arm: arm.plan.draft_tokens if arm.plan else 0)
        plain: list[SpeculationStats] = []
        wide: list[SpeculationStats] = []
        for prompt in self._next_prompts(_CALIBRATION_PROMPTS):
            for arm, found in ((self._arms[0], plain), (widest, wide)):
                (request,) = requests_of(arm, [prompt])
                found.append(statistics_of(await answer(self._clients.others, request)))
        return row_cost(plain, wide)

    def _next_prompts(self, count: int) -> list[Prompt]:
        first, self._turn = self._turn, self._turn + count
        return [self._prompts[n % len(self._prompts)] for n in range(first, self._turn)]


RANDOM_DRAFTS = Phase("calibration", Disturbance(random_drafts=True))


def row_cost(plain: Sequence[SpeculationStats], wide: Sequence[SpeculationStats]) -> RowCost:
    """Return the cost of a row from rounds of one row and rounds of several."""
    one_us, few_us = (_per_round(stats, "forward_us") for stats in (plain, wide))
    few_rows = _per_round(wide, "rows")
    if few_rows <= 1:
        raise ValueError("no round of the fixed settings verified a draft; is there a drafter?")
    return RowCost(one_us, max(0.0, few_us - one_us) / (few_rows - 1))


def _per_round(stats: Sequence[SpeculationStats], name: str) -> float:
    return sum(getattr(one.verify, name) for one in stats) / sum(one.rounds for one in stats)


def statistics_of(answer: Answer) -> SpeculationStats:
    """Return what the gateway says of a finished answer."""
    assert answer.finish is not None, "an answer ends with a finish"
    return answer.finish.speculation


def run_of(answers: Sequence[Answer]) -> Run:
    """Return what answers given at once came to.

    Several are timed from when all have begun, their prompts computed, until all have ended.
    """
    stats = [statistics_of(answer) for answer in answers]
    rounds = statistics.fmean(one.rounds for one in stats)
    if len(answers) > 1:
        first = max(taken.times[0] for taken in answers)
        last = max(taken.times[-1] for taken in answers)
        tokens = sum(taken.tokens_between(first, last) for taken in answers)
        return Run(tokens, last - first, rounds)
    return Run(len(answers[0].token_ids) - 1, stats[0].decode_us / 1e6, rounds)


def check_texts(prompts: Sequence[Prompt], answers: Mapping[str, Sequence[Answer]]) -> None:
    """Raise TextsDifferError unless all arms gave each prompt the same tokens."""
    plain = answers["plain"]
    for name, others in answers.items():
        for prompt, mine, other in zip(prompts, plain, others, strict=True):
            if mine.token_ids != other.token_ids:
                asked = prompt.text or prompt.messages[-1]["content"]
                raise TextsDifferError(f"{name} and plain answer {asked!r} differently")
