"""What every drafter is: something that follows a session's tokens and taps, and guesses on.

A drafter is shared by all sessions; what it keeps of one of them is its `Follower`. Guesses change
the speed, never the text, so a drafter may forget, err or be replaced at any time.

Legend: T rows, X tapped width (layers * hidden).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from protos.messages import Plan, SamplingParams
from protos.pairing import Pairing


@dataclass(frozen=True)
class Draft:
    """Nodes of a tree below its root. `parents` are node indices, 0 being the root."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()


class Follower(Protocol):
    """A drafter's half of one session."""

    def extend(self, base_len: int, tokens: Sequence[int], taps_TX: torch.Tensor | None) -> None:
        """Take in committed rows: row i pairs the tap at position base_len + i with tokens[i].

        tokens[i] is the committed token at position base_len + i + 1. Rows come in order and
        without gaps; they replace whatever was guessed there. taps_TX is None exactly for drafters
        that asked for no tap layers.
        """

    def draft(self, tokens: Sequence[int], plan: Plan, sampling: SamplingParams) -> Draft:
        """Guess what follows `tokens`, all the committed ones; the last of them is the root.

        Every row but the root's own has been taken in by `extend`, from the first row on that
        `Drafter.follow` was told of. If there was none yet, there is nothing to go by: an empty
        draft.
        """

    def close(self) -> None:
        """Free what the session held. Nothing follows."""


class Drafter(Protocol):
    """A drafter: what it is, what it needs of a target, and how it follows a session."""

    drafter_id: str
    kind: str
    # Whether it computes long enough to be kept off the event loop.
    blocking: bool
    # What must fit the target; no tap layers for a drafter that follows tokens only.
    pairing: Pairing

    def follow(self, first_row: int) -> Follower:
        """Begin to follow a session whose first row will be at position `first_row`.

        It is 0 unless the drafter joined a session that was already running.
        """
