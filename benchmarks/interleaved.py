"""Answers of several arms to the same prompts, in turn, in one run.

A machine's speed drifts by more than arms differ, so an arm is only ever compared with the others'
answers to the same prompt, given within the same seconds.

    warm up                              auto learns costs and drafters from what it answers
    read every prompt once, untimed      all arms find it in the prefix cache
    for every repeat and prompt          the arms answer, in an order that changes with every turn
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rich.progress import track

from benchmarks.arms import PLAIN, Arm, Wish
from protos import gateway_pb2 as pb
from slipstream.client import Client, Completion
from slipstream.connection import messages
from slipstream.generate import Prompt

Order = Callable[[Sequence[Arm], int], Sequence[Arm]]

# A rate needs more than a round.
_FEWEST_TOKENS = 2
_WARM_UP_TOKENS = 12


class TextsDifferError(RuntimeError):
    """Two arms answered differently: speculation must never change the text."""


@dataclass(frozen=True)
class Taken:
    """An answer and where its time went."""

    completion: Completion
    rounds: tuple[pb.RoundTimings, ...]

    @classmethod
    def of(cls, chunks: Sequence[pb.GenerateResponse]) -> Taken:
        """Join the chunks of a finished answer."""
        rounds = tuple(chunk.timings for chunk in chunks if chunk.HasField("timings"))
        return cls(Completion.of(chunks), rounds)

    @property
    def tokens(self) -> int:
        """Tokens after the first, which is the prompt's."""
        return len(self.completion.token_ids) - 1

    @property
    def seconds(self) -> float:
        """From the first token to the last, on the gateway's clock."""
        return self.completion.finish.speculation.decode_us / 1e6


@dataclass
class Measurements:
    """All answers, by prompt and arm."""

    prompts: Sequence[Prompt]
    arms: Sequence[Arm]
    simulated: bool
    taken: dict[tuple[int, Arm], list[Taken]] = field(default_factory=dict)

    def add(self, number: int, arm: Arm, taken: Taken) -> None:
        """Keep an answer to a prompt. Raises TextsDifferError unless it is as all before."""
        if not self.simulated:
            self._check_text(number, arm, taken.completion.token_ids)
        self.taken.setdefault((number, arm), []).append(taken)

    def _check_text(self, number: int, arm: Arm, token_ids: Sequence[int]) -> None:
        for (other_number, other), (first, *_) in self.taken.items():
            known = first.completion.token_ids
            alike = other_number == number and other.temperature == arm.temperature
            if alike and known != tuple(token_ids):
                place = _first_difference(known, token_ids)
                raise TextsDifferError(
                    f"prompt {number + 1} ({self.prompts[number].task}): the answers of "
                    f"{other.name} and {arm.name} differ from token {place + 1} on"
                )

    @property
    def timed(self) -> list[int]:
        """The prompts whose answers were long enough to time."""
        shortest: dict[int, int] = {}
        for (number, _), answers in self.taken.items():
            fewest = min(taken.tokens for taken in answers)
            shortest[number] = min(fewest, shortest.get(number, fewest))
        return sorted(number for number, fewest in shortest.items() if fewest >= _FEWEST_TOKENS)

    def seconds(self, number: int, arm: Arm) -> float:
        """Return how long an answer took: the median of its repeats."""
        return statistics.median(taken.seconds for taken in self.taken[number, arm])

    def rate(self, number: int, arm: Arm) -> float:
        """Return the tokens a second of an answer."""
        return self.tokens(number, arm) / self.seconds(number, arm)

    def tokens(self, number: int, arm: Arm) -> int:
        """Return the timed tokens of an answer."""
        return self.taken[number, arm][0].tokens

    def of_arm(self, arm: Arm, numbers: Sequence[int]) -> list[Taken]:
        """Return all answers of an arm to some prompts."""
        return [taken for number in numbers for taken in self.taken[number, arm]]


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def rotated(arms: Sequence[Arm], turn: int) -> Sequence[Arm]:
    """Return the arms in an order in which, over the turns, each is at every place as often."""
    first = turn % len(arms)
    return [*arms[first:], *arms[:first]]


def shuffled(arms: Sequence[Arm], turn: int) -> Sequence[Arm]:
    """Return the arms in a random order, the same for the same turn."""
    return random.Random(turn).sample(arms, len(arms))


def measure(
    client: Client, found: Measurements, wish: Wish, *, repeats: int, order: Order = rotated
) -> None:
    """Let all arms answer all prompts.

    Raises TextsDifferError, and RpcError if the gateway refuses or is gone.
    """
    _warm_up(client, found, wish)
    reading = replace(wish, max_new_tokens=1)
    for prompt in found.prompts:
        _answer(client, prompt, PLAIN, reading)
    turns = [number for _ in range(repeats) for number in range(len(found.prompts))]
    for turn, number in enumerate(track(turns, "answering", console=messages, transient=True)):
        for arm in order(found.arms, turn):
            found.add(number, arm, _answer(client, found.prompts[number], arm, wish))


def _warm_up(client: Client, found: Measurements, wish: Wish) -> None:
    """Let every arm answer shortly, and auto, which learns from it, one prompt of each task."""
    short = replace(wish, max_new_tokens=min(_WARM_UP_TOKENS, wish.max_new_tokens))
    for arm in found.arms:
        _answer(client, found.prompts[0], arm, short)
    firsts = {prompt.task: prompt for prompt in reversed(found.prompts)}
    for arm in found.arms:
        for prompt in firsts.values() if arm.mode == "auto" else ():
            _answer(client, prompt, arm, wish)


def _answer(client: Client, prompt: Prompt, arm: Arm, wish: Wish) -> Taken:
    return Taken.of(list(client.stream(arm.options(wish).request(prompt))))
