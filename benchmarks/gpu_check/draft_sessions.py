"""Sessions that a drafter follows round after round, with text and taps drawn at random.

Legend: T rows, X tapped width.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from draft_service.drafters import Draft, Drafter, Rows, Wanted
from draft_service.drafters.eagle3_config import Eagle3Config
from draft_service.graphs import TREE_SLOTS
from draft_service.tree_growth import max_rows
from kernels.kv_pages import PAGE_LEN, num_pages_for
from protos.messages import Plan, SamplingParams


@dataclass(frozen=True)
class DraftLoad:
    """What is drafted: a tree for each session, of which some nodes are accepted each round."""

    plan: Plan
    sessions: int = 8
    context: int = 66
    committed: int = 2
    rounds: int = 8

    def rows_at(self, number: int) -> int:
        """Return how many rows a session has in a round, from 0 on."""
        return self.context + number * self.committed

    def __str__(self) -> str:
        kind = "chains of" if self.plan.top_k == 1 else f"trees of {self.plan.top_k} and"
        return f"{self.sessions} {kind} {self.plan.steps}"

    @property
    def rows(self) -> int:
        """Rows of a session in the last round."""
        return self.rows_at(self.rounds - 1)

    @property
    def slots(self) -> int:
        """The most of a session, its guesses included."""
        return self.rows + 1 + TREE_SLOTS

    @property
    def kv_tokens(self) -> int:
        """What a drafter's cache needs for all sessions."""
        return self.sessions * num_pages_for(self.slots) * PAGE_LEN


class PlayedSession(NamedTuple):
    """A text with the taps of all but its last token."""

    tokens: Sequence[int]
    taps_TX: torch.Tensor
    sampling: SamplingParams


def play_sessions(config: Eagle3Config, load: DraftLoad) -> list[PlayedSession]:
    """Return sessions, every other one of which is greedy.

    None filters: at a filter's edge nothing is lost by taking one token for another. Filters have
    kernels of their own, and those have cases.
    """
    draw = torch.Generator().manual_seed(0)
    found = []
    for number in range(load.sessions):
        tokens = torch.randint(config.vocab_size, (load.rows + 1,), generator=draw).tolist()
        taps_TX = torch.randn(load.rows, config.tapped_width, generator=draw).bfloat16()
        sampling = SamplingParams(temperature=float(1 - number % 2), seed=number)
        found.append(PlayedSession(tokens, taps_TX, sampling))
    return found


@dataclass
class Table:
    """Sessions at a drafter, of which it has taken in so many rows each."""

    drafter: Drafter[Any]
    sessions: Sequence[PlayedSession]
    plan: Plan

    def __post_init__(self) -> None:
        self._followers = [self.drafter.follow(0) for _ in self.sessions]
        self._taken = 0

    def round(self, rows: int) -> list[Draft]:
        """Take in all rows up to so many of each session, and draft."""
        first, self._taken = self._taken, rows
        followed = list(zip(self._followers, self.sessions, strict=True))
        for follower in self._followers:
            follower.reserve(rows - first)
        self.drafter.extend(
            [
                Rows(follower, first, tokens[first + 1 : rows + 1], taps_TX[first:rows])
                for follower, (tokens, taps_TX, _) in followed
            ]
        )
        for follower in self._followers:
            follower.reserve(max_rows(self.plan))
        return self.drafter.draft(
            [
                Wanted(follower, tokens[: rows + 1], self.plan, sampling)
                for follower, (tokens, _, sampling) in followed
            ]
        )


class Played(NamedTuple):
    """The drafts of every round, and how long one takes when none has anything left to compile."""

    rounds: list[list[Draft]]
    seconds: float


def play(
    drafter: Drafter[Any],
    sessions: Sequence[PlayedSession],
    load: DraftLoad,
    begin: Callable[[], object],
) -> Played:
    """Play all rounds, each after `begin`. The first take in the context, compile, and capture."""
    table, rounds, taken = Table(drafter, sessions, load.plan), [], []
    for number in range(load.rounds):
        begin()
        started = time.perf_counter()
        rounds.append(table.round(load.rows_at(number)))
        taken.append(time.perf_counter() - started)
    return Played(rounds, statistics.median(taken[load.rounds // 2 :]))
