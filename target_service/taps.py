"""Taps on their way to subscribers: held back for one that was announced, bounded for all.

A feed is a session's taps. Anything may subscribe: a drafter, a shadow, a recorder. None of them is
ever the target's problem: one that falls behind by more than the buffer is dropped.

Legend: T rows, X tapped width (layers * hidden).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from protos import speculation_pb2 as pb
from protos import tensors
from protos.pairing import Pairing
from target_service.session import Session

# A message stays well below gRPC's default limit of 4 MiB.
_MAX_FRAME_BYTES = 2 * 2**20
_MAX_GATHERED_ROWS = 1024


@dataclass(frozen=True)
class Frame:
    """Taps of consecutive rows from `base_len` on, and the committed tokens that follow each."""

    base_len: int
    committed_len: int
    tokens: tuple[int, ...]
    taps_TX: torch.Tensor

    @property
    def num_bytes(self) -> int:
        return self.taps_TX.nbytes + 8 * len(self.tokens)

    @classmethod
    def joined(cls, frames: Sequence[Frame]) -> Frame:
        """Return consecutive frames as one."""
        if len(frames) == 1:
            return frames[0]
        tokens = tuple(token for frame in frames for token in frame.tokens)
        taps_TX = torch.cat([frame.taps_TX for frame in frames])
        return cls(frames[0].base_len, frames[-1].committed_len, tokens, taps_TX)

    def split(self) -> list[Frame]:
        """Return the frame in pieces that fit a message."""
        if self.num_bytes <= _MAX_FRAME_BYTES:
            return [self]
        rows = max(1, len(self.tokens) * _MAX_FRAME_BYTES // self.num_bytes)
        return [
            Frame(
                self.base_len + start,
                self.committed_len,
                self.tokens[start : start + rows],
                self.taps_TX[start : start + rows],
            )
            for start in range(0, len(self.tokens), rows)
        ]


class SubscriberTooSlowError(Exception):
    """A subscriber fell behind by more than the buffer."""


class Subscription:
    """One subscriber of one session: the columns it wants of every frame, in its own order."""

    def __init__(
        self, pairing: Pairing, tapped: Pairing, max_bytes: int, min_rows: int = 0
    ) -> None:
        """Frames of fewer than `min_rows` rows are gathered until there are so many."""
        self._max_bytes = max_bytes
        self._min_rows = min_rows
        self._columns = _columns(pairing, tapped)
        self._gathered: list[Frame] = []
        self._queue: asyncio.Queue[Frame | None] = asyncio.Queue()
        self._bytes = 0
        self._too_slow = False

    def put(self, frame: Frame) -> None:
        """Queue a frame, or give the subscriber up."""
        if self._too_slow:
            return
        frame = self._select(frame)
        self._bytes += frame.num_bytes
        self._too_slow = self._bytes > self._max_bytes
        if self._too_slow:
            self._queue.put_nowait(None)
            return
        self._gathered.append(frame)
        if sum(len(part.tokens) for part in self._gathered) >= self._min_rows:
            self._pass_on()

    def end(self) -> None:
        """The session is closed: nothing will follow."""
        self._pass_on()
        self._queue.put_nowait(None)

    def _pass_on(self) -> None:
        """Queue what was gathered, in frames that fit a message."""
        if self._gathered:
            for frame in Frame.joined(self._gathered).split():
                self._queue.put_nowait(frame)
            self._gathered = []

    async def next_frame(self) -> pb.TapFrame | None:
        """Return the next frame, or None at the end. Raises SubscriberTooSlowError."""
        frame = await self._queue.get()
        if self._too_slow:
            raise SubscriberTooSlowError(
                f"the subscriber is more than {self._max_bytes} bytes of taps behind"
            )
        if frame is None:
            return None
        self._bytes -= frame.num_bytes
        return self._to_proto(frame)

    def _select(self, frame: Frame) -> Frame:
        taps_TX = frame.taps_TX[:, self._columns]
        return Frame(frame.base_len, frame.committed_len, frame.tokens, taps_TX)

    @staticmethod
    def _to_proto(frame: Frame) -> pb.TapFrame:
        taps = tensors.to_proto(frame.taps_TX) if frame.taps_TX.shape[1] else None
        return pb.TapFrame(
            base_len=frame.base_len,
            committed_len=frame.committed_len,
            tokens=frame.tokens,
            taps=taps,
        )


def _columns(pairing: Pairing, tapped: Pairing) -> torch.Tensor | slice:
    """Return the columns of the target's taps that a subscriber wants; a slice costs no copy."""
    wanted_layers, layers = pairing.tap_layers, tapped.tap_layers
    if wanted_layers == layers[: len(wanted_layers)]:
        return slice(len(wanted_layers) * tapped.hidden_size)
    starts = [layers.index(layer) * tapped.hidden_size for layer in wanted_layers]
    return torch.cat([torch.arange(start, start + tapped.hidden_size) for start in starts])


@dataclass
class _Feed:
    session: Session
    expected: bool
    backlog: deque[Frame] = field(default_factory=deque)
    subscriptions: list[Subscription] = field(default_factory=list)

    def first_row(self) -> int:
        return self.backlog[0].base_len if self.backlog else self.session.told_len


class TapHub:
    """The feeds of all sessions."""

    def __init__(self, tapped: Pairing, *, max_bytes: int, attach_timeout_s: float) -> None:
        self._tapped = tapped
        self._max_bytes = max_bytes
        self._attach_timeout_s = attach_timeout_s
        self._feeds: dict[str, _Feed] = {}
        self._opened = asyncio.Condition()

    @property
    def num_subscriptions(self) -> int:
        return sum(len(feed.subscriptions) for feed in self._feeds.values())

    async def open(self, session: Session, *, expect: bool) -> None:
        """Begin a session's feed. `expect` holds frames back until somebody subscribes."""
        self._feeds[session.session_id] = _Feed(session, expect)
        async with self._opened:
            self._opened.notify_all()

    def close(self, session: Session) -> None:
        """End a session's feed and its subscriptions."""
        feed = self._feeds.pop(session.session_id, None)
        for subscription in feed.subscriptions if feed else ():
            subscription.end()

    def listens(self, session: Session) -> bool:
        """Whether anybody follows a session's feed, or is about to."""
        feed = self._feeds.get(session.session_id)
        return feed is not None and (feed.expected or bool(feed.subscriptions))

    def publish(self, session: Session, base_len: int, taps_TX: torch.Tensor) -> None:
        """Send the taps of rows from `base_len` on to whoever listens; then they are told."""
        session.told_len = base_len + len(taps_TX)
        if not self.listens(session):
            return
        feed = self._feeds[session.session_id]
        tokens = tuple(session.tokens[base_len + 1 : base_len + 1 + len(taps_TX)])
        for frame in Frame(base_len, session.committed_len, tokens, taps_TX).split():
            for subscription in feed.subscriptions:
                subscription.put(frame)
            if feed.expected:
                self._hold_back(feed, frame)

    def _hold_back(self, feed: _Feed, frame: Frame) -> None:
        feed.backlog.append(frame)
        while sum(held.num_bytes for held in feed.backlog) > self._max_bytes:
            feed.backlog.popleft()

    async def subscribe(
        self, session_id: str, pairing: Pairing, known_len: int, min_rows: int = 0
    ) -> tuple[Subscription, Sequence[int], int]:
        """Return a subscription, the tokens it missed and the first row that will come.

        The first subscriber gets what was held back.

        Raises KeyError if no such session opens within the attach timeout, ValueError if the
        subscriber claims to know tokens that do not exist, or wants too many rows gathered.
        """
        feed, subscription = await self._attach(session_id, pairing, known_len, min_rows)
        first_row = feed.first_row()
        for frame in feed.backlog:
            subscription.put(frame)
        feed.backlog.clear()
        feed.expected = False
        feed.subscriptions.append(subscription)
        return subscription, feed.session.tokens[known_len:], first_row

    async def subscribe_beside(
        self, session_id: str, pairing: Pairing, known_len: int, min_rows: int = 0
    ) -> tuple[Subscription, Session]:
        """Return a subscription that leaves what is held back to others, and the session.

        The rows that were told already are for the caller to put in. Raises as `subscribe` does.
        """
        feed, subscription = await self._attach(session_id, pairing, known_len, min_rows)
        feed.subscriptions.append(subscription)
        return subscription, feed.session

    async def _attach(
        self, session_id: str, pairing: Pairing, known_len: int, min_rows: int
    ) -> tuple[_Feed, Subscription]:
        if min_rows > _MAX_GATHERED_ROWS:
            raise ValueError(f"min_rows must be in [0, {_MAX_GATHERED_ROWS}], got {min_rows}")
        feed = await self._wait_for(session_id)
        if known_len > feed.session.committed_len:
            raise ValueError(
                f"known_len is {known_len}, but only {feed.session.committed_len} tokens exist"
            )
        return feed, Subscription(pairing, self._tapped, self._max_bytes, min_rows)

    def unsubscribe(self, session_id: str, subscription: Subscription) -> None:
        """Forget a subscriber."""
        feed = self._feeds.get(session_id)
        if feed and subscription in feed.subscriptions:
            feed.subscriptions.remove(subscription)

    async def _wait_for(self, session_id: str) -> _Feed:
        try:
            async with asyncio.timeout(self._attach_timeout_s), self._opened:
                await self._opened.wait_for(lambda: session_id in self._feeds)
        except TimeoutError:
            raise KeyError(session_id) from None
        return self._feeds[session_id]
