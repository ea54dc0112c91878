"""What every drafter is: something that follows the tokens and taps of sessions, and guesses on.

A drafter serves batches of sessions, none of which feels the others; what it keeps of one of them
is its follower. Guesses change the speed, never the text, so a drafter may forget, err or be
replaced at any time.

Legend: T rows, X tapped width (layers * hidden).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

from draft_service.kv_pool import KvUsage
from protos.messages import Plan, SamplingParams
from protos.pairing import Pairing


@dataclass(frozen=True)
class Draft:
    """Nodes of a tree below its root. `parents` are node indices, 0 being the root."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    num_rows: int = 0
    """How many rows were run to grow it."""


class Follower(Protocol):
    """A drafter's half of one session."""

    def reserve(self, num_rows: int) -> None:
        """Make room for so many rows after those taken in. Raises KvPoolFullError."""

    def close(self) -> None:
        """Free what the session held. Nothing follows, but perhaps another close."""


F = TypeVar("F", bound=Follower)


@dataclass(frozen=True)
class Rows(Generic[F]):
    """Committed rows of a session: row i pairs the tap at position base_len + i with tokens[i].

    tokens[i] is the committed token at position base_len + i + 1. taps_TX is None exactly for
    drafters that asked for no tap layers.
    """

    follower: F
    base_len: int
    tokens: Sequence[int]
    taps_TX: torch.Tensor | None


@dataclass(frozen=True)
class Wanted(Generic[F]):
    """A draft of what follows `tokens`, all the committed ones; the last of them is the root."""

    follower: F
    tokens: Sequence[int]
    plan: Plan
    sampling: SamplingParams


class Drafter(Protocol[F]):
    """A drafter: what it is, what it needs of a target, and how it follows sessions.

    Batches hold a session at most once. One thread at a time calls it, but for `follow`.
    """

    drafter_id: str
    kind: str
    # Whether it computes long enough to be kept off the event loop.
    blocking: bool
    # What must fit the target; no tap layers for a drafter that follows tokens only.
    pairing: Pairing
    # The longest session that it can follow.
    max_context_len: int

    @property
    def kv_usage(self) -> KvUsage:
        """Return how much of its KV cache is in use."""

    @property
    def target_ids(self) -> Sequence[int] | None:
        """Return the target's id of each token of its own vocabulary; None if they are the same."""

    def follow(self, first_row: int) -> F:
        """Begin to follow a session whose first row will be at position `first_row`.

        It is 0 unless the drafter joined a session that was already running.
        """

    def extend(self, batch: Sequence[Rows[F]]) -> None:
        """Take in committed rows, over whatever was guessed there.

        A session's rows come in order and without gaps. There is room for them.
        Every batch ends with a call of `draft`, to which a drafter may put off what is to be run.
        """

    def draft(self, batch: Sequence[Wanted[F]]) -> list[Draft]:
        """Guess what comes next in each session.

        Every row but the root's own has been taken in by `extend`, from the first row on that
        `follow` was told of. If there was none yet, there is nothing to go by: an empty draft.
        There is room for as many rows as `tree_growth.max_rows` says. A batch of which nobody
        wants a draft is empty.
        """
