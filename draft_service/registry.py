"""The drafters of this replica: which take sessions, why the others do not, which is for whom.

For the event loop only, but for `load_first`, which comes before there are any sessions.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog

from draft_service.alarm import Alarm
from draft_service.drafters import Drafter
from draft_service.drafters.target_side import TargetSide
from draft_service.loader import DrafterRefusedError, DrafterSpec, Loader
from draft_service.outbox import Outbox
from draft_service.placement import ON_CPU, Placement
from draft_service.scorecard import Scorecard
from protos import draft_pb2 as pb
from protos.pairing import Pairing

log = structlog.get_logger()


@dataclass(eq=False)
class Registered:
    """A drafter that takes sessions, or the reason why it does not."""

    spec: DrafterSpec
    drafter: Drafter[Any] | None
    state: pb.DrafterState = pb.DRAFTER_STATE_READY
    refusal: str = ""
    scorecard: Scorecard = field(default_factory=Scorecard)
    alarm: Alarm = field(default_factory=Alarm)
    outboxes: set[Outbox] = field(default_factory=set)
    """Of the sessions that it drafts for."""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether it was unloaded, and its last session has ended."""

    @property
    def drafter_id(self) -> str:
        return self.spec.drafter_id

    @property
    def loaded(self) -> Drafter[Any]:
        """The drafter of one that takes sessions, or still has some."""
        assert self.drafter is not None, f"drafter {self.drafter_id!r} is not loaded"
        return self.drafter

    @property
    def takes_sessions(self) -> bool:
        return self.state == pb.DRAFTER_STATE_READY

    def become_ready(self, drafter: Drafter[Any]) -> None:
        """Take sessions from now on."""
        self.drafter, self.state, self.refusal = drafter, pb.DRAFTER_STATE_READY, ""

    def close_to_sessions(self, state: pb.DrafterState, refusal: str) -> None:
        """Take no new sessions from now on."""
        self.state, self.refusal = state, refusal


@dataclass(frozen=True)
class Canary:
    """A drafter that takes a share of the sessions that name none."""

    drafter_id: str
    share: float


class DrafterExistsError(Exception):
    """The id is in use."""


class Registry:
    """Drafters by id. The default is the first one that takes sessions, unless one was chosen."""

    def __init__(
        self, specs: Sequence[DrafterSpec], kv_tokens: int, placement: Placement = ON_CPU
    ) -> None:
        """Drafters to load, each with a KV cache for so many tokens if it needs one."""
        if not specs:
            raise ValueError("at least one drafter is needed, got none")
        ids = [spec.drafter_id for spec in specs]
        if twice := {drafter_id for drafter_id in ids if ids.count(drafter_id) > 1}:
            raise ValueError(f"every drafter needs an id of its own, got {sorted(twice)} twice")
        self.canary: Canary | None = None
        self.loader: Loader | None = None
        """None before the target was found."""
        self._specs = tuple(specs)
        self._kv_tokens = kv_tokens
        self._placement = placement
        self._chosen_id = ""
        self._registered: dict[str, Registered] = {}

    @property
    def default_id(self) -> str:
        """The drafter of sessions that name none; if none takes sessions, the one to be named."""
        serving = [entry.drafter_id for entry in self.all if entry.takes_sessions]
        if self._chosen_id in serving:
            return self._chosen_id
        first = self.all[0].spec if self.all else self._specs[0]
        return (serving or [first.drafter_id])[0]

    @property
    def all(self) -> list[Registered]:
        return list(self._registered.values())

    def load_first(self, target: TargetSide, pairing: Pairing) -> None:
        """Load every drafter for a target; one that does not fit is refused, not fatal."""
        loader = Loader(target, pairing, self._kv_tokens, self._placement)
        loaded = [_load(loader, spec) for spec in self._specs]
        self._registered = {entry.drafter_id: entry for entry in loaded}
        self.loader = loader

    def entry(self, drafter_id: str) -> Registered:
        """Return a drafter that takes sessions. Raises KeyError or DrafterRefusedError."""
        entry = self._registered[drafter_id]
        if not entry.takes_sessions:
            raise DrafterRefusedError(entry.refusal)
        return entry

    def route(self, session_id: str, drafter_id: str) -> Registered:
        """Return the drafter for a session: the one it names, the canary, or the default.

        Raises KeyError or DrafterRefusedError.
        """
        canary = self.canary
        if not drafter_id and canary and falls_within(canary.share, "canary", session_id):
            drafter_id = canary.drafter_id
        return self.entry(drafter_id or self.default_id)

    def choose_default(self, drafter_id: str) -> None:
        """Raises KeyError or DrafterRefusedError."""
        self.entry(drafter_id)
        self._chosen_id = drafter_id
        log.info("default_drafter", drafter_id=drafter_id)

    def set_canary(self, canary: Canary) -> None:
        """Raises KeyError or DrafterRefusedError. A share of 0 ends it."""
        self.entry(canary.drafter_id)
        self.canary = canary if canary.share else None
        log.info("canary", drafter_id=canary.drafter_id, share=canary.share)

    def begin_load(self, spec: DrafterSpec) -> Registered:
        """Note that a drafter is being loaded. Raises DrafterExistsError."""
        there = self._registered.get(spec.drafter_id)
        if there is not None and there.state != pb.DRAFTER_STATE_REFUSED:
            raise DrafterExistsError(f"drafter {spec.drafter_id!r} is there already")
        entry = Registered(spec, None, pb.DRAFTER_STATE_LOADING, "it is being loaded")
        self._registered[spec.drafter_id] = entry
        return entry

    def begin_unload(self, drafter_id: str) -> Registered:
        """Give a drafter no new sessions; it goes with the last of them.

        Raises KeyError, or ValueError for the default and for one that is being loaded.
        """
        entry = self._registered[drafter_id]
        if entry.state == pb.DRAFTER_STATE_LOADING:
            raise ValueError(f"drafter {drafter_id!r} is being loaded")
        if entry.takes_sessions and drafter_id == self.default_id:
            raise ValueError(f"drafter {drafter_id!r} is the default: choose another one first")
        self._end_canary(entry)
        entry.close_to_sessions(pb.DRAFTER_STATE_DRAINING, "it is being unloaded")
        self._forget_if_drained(entry)
        return entry

    def take_out(self, entry: Registered, reason: str) -> None:
        """Take a drafter that is of no use out of service."""
        entry.close_to_sessions(pb.DRAFTER_STATE_ALARM, reason)
        self._end_canary(entry)

    @contextmanager
    def serving(self, entry: Registered, outbox: Outbox) -> Iterator[None]:
        """While a drafter drafts for a session."""
        entry.outboxes.add(outbox)
        try:
            yield
        finally:
            entry.outboxes.remove(outbox)
            self._forget_if_drained(entry)

    def _end_canary(self, entry: Registered) -> None:
        if self.canary is not None and self.canary.drafter_id == entry.drafter_id:
            self.canary = None

    def _forget_if_drained(self, entry: Registered) -> None:
        if entry.state == pb.DRAFTER_STATE_DRAINING and not entry.outboxes:
            self._registered.pop(entry.drafter_id, None)
            entry.drafter = None
            entry.gone.set()
            log.info("drafter_unloaded", drafter_id=entry.drafter_id)


def falls_within(share: float, purpose: str, session_id: str) -> bool:
    """Whether a session belongs to a share of all: always the same ones, others a purpose."""
    digest = hashlib.sha256(f"{purpose}:{session_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def _load(loader: Loader, spec: DrafterSpec) -> Registered:
    try:
        return Registered(spec, loader.load(spec))
    except DrafterRefusedError as error:
        return Registered(spec, None, pb.DRAFTER_STATE_REFUSED, str(error))
