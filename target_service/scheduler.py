"""Which rows run next: draft trees, plain rows and chunks of prompts of all ready sessions at once.

Sans-I/O: knows neither tensors nor sockets. Sessions stand in a line in the order in which they
became ready, those of a higher priority first. A step takes from its head what fits: at most
`step_rows` rows, and at most `chunk_len` of prompts, so that a prompt delays the others by no more
than a chunk a step. A prompt comes back to the end of the line after every chunk.

Pages are promised to nobody. A session that needs one takes it from a session that came later, the
last one first, which computes its text again when its turn comes. The first session can so have
whatever it needs, and every session fits the cache alone: all of them end.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from target_service.kv_memory import KvMemory, pages_for
from target_service.session import Rows, Session

# A session that is silent for so long gives its pages to whoever needs them, even if it came first.
_SILENT_S = 1.0


class QueueFullError(Exception):
    """So many sessions are open already that another one would only wait too long."""


@dataclass
class _Place:
    """Where a session stands: when it came, and since when it has had nothing to compute."""

    arrival: int
    silent_since: float = 0.0


@dataclass
class _Room:
    """What a step still has room for."""

    rows: int
    prompt_rows: int

    def take(self, rows: Rows) -> bool:
        """Take rows in, unless they are too many, or none because no prompt has room."""
        if not 0 < len(rows.tokens) <= self.rows:
            return False
        assert rows.num_prompt_rows <= self.prompt_rows, rows
        self.rows -= len(rows.tokens)
        self.prompt_rows -= rows.num_prompt_rows
        return True


class Scheduler:
    """The open sessions, those that are ready, and who has which pages."""

    def __init__(
        self, memory: KvMemory, *, step_rows: int, chunk_len: int, max_sessions: int
    ) -> None:
        self.memory = memory
        self.num_preempted = 0
        self._step_rows = step_rows
        self._chunk_len = chunk_len
        self._max_sessions = max_sessions
        self._sessions: dict[str, Session] = {}
        self._places: dict[Session, _Place] = {}
        self._arrivals = itertools.count()
        # In the order in which they became ready.
        self._ready: dict[Session, None] = {}

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    @property
    def num_ready(self) -> int:
        return len(self._ready)

    @property
    def wants_steps_anyway(self) -> bool:
        """Whether somebody is ready who does not take rounds: a prompt, or a session that runs."""
        return any(one.runs_on or not one.num_new_tokens for one in self._ready)

    def session(self, session_id: str) -> Session | None:
        """Return an open session."""
        return self._sessions.get(session_id)

    def open(self, session: Session) -> None:
        """Take in a session, ready to prefill. Raises QueueFullError; KeyError for a used id."""
        if session.session_id in self._sessions:
            raise KeyError(session.session_id)
        if len(self._sessions) >= self._max_sessions:
            raise QueueFullError(f"{len(self._sessions)} of {self._max_sessions} sessions are open")
        self._sessions[session.session_id] = session
        self._places[session] = _Place(next(self._arrivals))
        self._ready[session] = None

    def close(self, session: Session) -> None:
        """Forget a session, wherever it stands, and free its pages."""
        if self._places.pop(session, None) is not None:
            del self._sessions[session.session_id]
            self._ready.pop(session, None)
            self.memory.free(session.memory)

    def ready(self, session: Session) -> None:
        """Put a session that has rows to compute at the end of the line."""
        if session in self._places:
            self._ready[session] = None

    def computed(self, session: Session) -> None:
        """Let others that begin alike have the pages that a step has filled."""
        if session in self._places:
            self.memory.keep(session.memory, session.tokens, session.cached_len)

    def silent(self, session: Session, now: float) -> None:
        """Note that a session has nothing to compute from now on."""
        if session in self._places:
            self._places[session].silent_since = now

    def schedule(self, now: float) -> list[Rows]:
        """Return the rows of the next step, of each session at most once; none if nobody can run.

        `now` is on the clock of `silent`. No step may be running: pages change hands.
        """
        room = _Room(self._step_rows, self._chunk_len)
        batch: dict[Session, Rows] = {}
        for session in self._line():
            rows = self._next_rows(session, room.prompt_rows)
            if room.take(rows) and self._make_room(session, rows.num_slots, batch, now):
                batch[session] = replace(rows, pages=self._pages_of(session, rows))
        for session in batch:
            self._ready.pop(session)
        return list(batch.values())

    def _line(self) -> Iterator[Session]:
        """Yield the ready sessions, as long as they are: one may lose its pages, never its turn."""
        return iter(sorted(self._ready, key=lambda session: -session.priority))

    def _next_rows(self, session: Session, prompt_rows: int) -> Rows:
        if not session.memory.pages:
            session.cached_len = self.memory.begin(session.memory, session.tokens)
        return session.next_rows(prompt_rows)

    def _pages_of(self, session: Session, rows: Rows) -> tuple[int, ...]:
        return tuple(session.memory.pages[: pages_for(rows.num_slots)])

    def _make_room(
        self, session: Session, num_slots: int, batch: dict[Session, Rows], now: float
    ) -> bool:
        """Get a session the pages it needs, from others if it must be. Returns whether it has."""
        while not self.memory.reserve(session.memory, num_slots):
            victim = self._victim(session, batch, now)
            if victim is None:
                return False
            self._preempt(victim)
        return True

    def _victim(self, session: Session, batch: dict[Session, Rows], now: float) -> Session | None:
        """Return who must give up pages for a session: one long silent, or the last to come."""
        owners = [
            other
            for other in self._places
            if other.memory.pages and other not in batch and other is not session
        ]
        silent = [other for other in owners if self._is_silent(other, now)]
        later = [other for other in owners if self._comes_before(session, other)]
        return max(silent or later, key=self._rank, default=None)

    def _is_silent(self, session: Session, now: float) -> bool:
        return session.tree is None and now - self._places[session].silent_since >= _SILENT_S

    def _comes_before(self, session: Session, other: Session) -> bool:
        return self._rank(session) < self._rank(other)

    def _rank(self, session: Session) -> tuple[int, int]:
        return -session.priority, self._places[session].arrival

    def _preempt(self, session: Session) -> None:
        """Take a session's pages. Its committed tokens have no rows then, as those of a prompt."""
        self.memory.free(session.memory)
        session.cached_len = 0
        self.num_preempted += 1
