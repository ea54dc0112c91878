"""A session that a drafter follows: what arrived, what its drafter is to do, and the tree it gets.

Sans-I/O. Once the session is followed, everything here but `outbox` and `in_flight` belongs to the
thread that runs the batches. A shadow follows as others do; its trees are scored and not sent.

Legend: T rows, X tapped width (layers * hidden).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from draft_service.backlog import Backlog
from draft_service.drafters import Draft, Drafter, Follower, Rows, Wanted
from draft_service.outbox import Outbox
from draft_service.scoring import DraftedRounds, Scored
from draft_service.session import DraftSession
from draft_service.tree_growth import max_rows
from protos import speculation_pb2 as pb
from protos import tensors
from protos.messages import DraftTimings, DraftTree
from protos.pairing import Pairing

# Frames handed over and not taken in: beyond these the stream is held back, the target notices.
MAX_IN_FLIGHT = 32
# A drafter that is not asked for drafts takes rows in so many at a time: each forward costs.
LAZY_ROWS = 16


class InFlight(Protocol):
    """The frames that were handed over and are not taken in yet."""

    async def acquire(self) -> object:
        """One more is handed over."""

    def release(self) -> None:
        """The oldest is taken in."""


@dataclass(eq=False)
class Following:
    """A session together with its drafter, and what that keeps of it."""

    session: DraftSession
    drafter: Drafter[Any]
    follower: Follower
    outbox: Outbox
    tapped: tuple[int, ...]
    """The layers whose taps arrive: the drafter's, or more."""
    in_flight: InFlight = field(default_factory=lambda: asyncio.Semaphore(MAX_IN_FLIGHT))
    is_shadow: bool = False
    backlog: Backlog = field(default_factory=Backlog)
    arrived_ns: int = 0
    failure: Exception | None = None
    _newest_len: int = 0
    _frames_to_report: int = 0
    _rounds: DraftedRounds = field(default_factory=DraftedRounds)
    _scored: list[Scored] = field(default_factory=list)

    @classmethod
    def begin(cls, session: DraftSession, drafter: Drafter[Any], outbox: Outbox) -> Following:
        """Start at the row that the attached session expects next."""
        follower = drafter.follow(session.next_row)
        return cls(session, drafter, follower, outbox, drafter.pairing.tap_layers)

    @classmethod
    def shadow(
        cls,
        session: DraftSession,
        drafter: Drafter[Any],
        tapped: tuple[int, ...],
        in_flight: InFlight,
    ) -> Following:
        """The same for a drafter whose trees nobody is sent. Taps of these layers will arrive."""
        follower = drafter.follow(session.next_row)
        return cls(session, drafter, follower, Outbox(), tapped, in_flight, is_shadow=True)

    def arrive(self, frame: pb.TapFrame, arrived_ns: int) -> None:
        """Add a frame to the backlog.

        Raises ValueError, and changes nothing, if it does not follow the last one or is malformed.
        """
        _check_tokens(self.drafter, frame)
        taps_TX = None
        if self.drafter.pairing.tap_layers:
            taps_TX = tensors.from_proto(frame.taps)
            _check_taps(self.drafter.pairing, self.tapped, taps_TX, len(frame.tokens))
            taps_TX = self._own_taps(taps_TX)
        tokens = list(frame.tokens)
        self.session.take(frame.base_len, tokens)
        self._scored += self._rounds.commit(self.session.tokens)
        self.backlog.add(tokens, taps_TX)
        self.arrived_ns, self._newest_len = arrived_ns, frame.committed_len
        self._frames_to_report += 1

    def _own_taps(self, taps_TX: torch.Tensor) -> torch.Tensor:
        """Return the columns that the drafter reads."""
        wanted = self.drafter.pairing.tap_layers
        if wanted == self.tapped:
            return taps_TX
        chunks = taps_TX.chunk(len(self.tapped), dim=-1)
        return torch.cat([chunks[self.tapped.index(layer)] for layer in wanted], dim=-1)

    @property
    def is_behind(self) -> bool:
        """Whether rows are to be taken in now."""
        rows = self.backlog.num_rows
        return rows >= LAZY_ROWS or (rows > 0 and self.session.plan.steps > 0)

    def next_rows(self, limit: int) -> Rows[Any]:
        """Return the oldest rows of the backlog, at most `limit`. Raises KvPoolFullError."""
        base_len = self.session.next_row - self.backlog.num_rows
        tokens, taps_TX = self.backlog.take(limit)
        self.follower.reserve(len(tokens))
        return Rows(self.follower, base_len, tokens, taps_TX)

    def wanted(self) -> Wanted[Any] | None:
        """Return what to draft: nothing unless it is planned, and there is nothing newer.

        Raises KvPoolFullError.
        """
        session, plan = self.session, self.session.plan
        newest = session.is_newest(self._newest_len) and not self.backlog.num_rows
        if self.failure is not None or not newest or not plan.steps:
            return None
        self.follower.reserve(max_rows(plan))
        return Wanted(self.follower, session.tokens, plan, session.sampling)

    def tree(self, draft: Draft, timings: DraftTimings) -> DraftTree:
        """Return a draft below its root, the last committed token; it will be scored."""
        self._rounds.draft(self.session.committed_len, draft, self.session.plan)
        return DraftTree(
            self.session.committed_len,
            (self.session.tokens[-1], *draft.tokens),
            (-1, *draft.parents),
            (0.0, *draft.logprobs) if draft.logprobs else (),
            self.session.drafter_id,
            timings,
        )

    def frames_done(self) -> int:
        """Return how many more frames are taken in since this was asked last."""
        done = self._frames_to_report - self.backlog.num_parts
        self._frames_to_report -= done
        return done

    def take_scored(self) -> list[Scored]:
        """Return the rounds that were decided since this was asked last."""
        scored, self._scored = self._scored, []
        return scored

    def fail(self, error: Exception) -> None:
        """Follow no further, and free what is held."""
        self.failure, self.backlog = error, Backlog()
        self.follower.close()


def _check_tokens(drafter: Drafter[Any], frame: pb.TapFrame) -> None:
    vocab_size, longest = drafter.pairing.vocab_size, drafter.max_context_len
    if frame.tokens and max(frame.tokens) >= vocab_size:
        raise ValueError(f"tokens must be in [0, {vocab_size}), got {max(frame.tokens)}")
    length = frame.base_len + len(frame.tokens) + 1
    if length > longest:
        raise ValueError(f"a frame makes the session {length} tokens long, at most {longest} fit")


def _check_taps(
    pairing: Pairing, tapped: tuple[int, ...], taps_TX: torch.Tensor, rows: int
) -> None:
    shape = [rows, len(tapped) * pairing.hidden_size]
    dtype = tensors.torch_dtype(pairing.tap_dtype)
    if (list(taps_TX.shape), taps_TX.dtype) != (shape, dtype):
        raise ValueError(
            f"taps of shape {list(taps_TX.shape)} and {taps_TX.dtype}, expected {shape} and {dtype}"
        )
