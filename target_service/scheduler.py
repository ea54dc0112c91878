"""Which rows run next: draft trees, plain rows and chunks of prompts of all ready sessions at once.

Sans-I/O: knows neither tensors nor sockets. Sessions stand in a line in the order in which they
became ready, those of a higher priority first. A step takes from its head what fits: at most
`step_rows` rows, and at most `chunk_len` of prompts, so that a prompt delays the others by no more
than a chunk a step. A prompt comes back to the end of the line after every chunk.

Pages are promised to nobody for good. A session that needs more takes them from sessions that came
later, the last one first, which compute their text again when their turn comes. The first session
can so have whatever it needs, and every session fits the cache alone: all of them end. Who has no
page yet begins after all others, and only if the whole of its text has room: sessions that take
turns at being begun and robbed would compute for nothing.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from target_service.company import Ready
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

    def fits(self, rows: Rows) -> bool:
        """Whether rows are not too many; none, because no prompt has room, are too few."""
        return 0 < len(rows.tokens) <= self.rows

    def take(self, rows: Rows) -> None:
        """Take rows in that fit."""
        assert rows.num_prompt_rows <= self.prompt_rows, rows
        self.rows -= len(rows.tokens)
        self.prompt_rows -= rows.num_prompt_rows


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
    def ready_for_a_step(self) -> Ready:
        """How many of those who are ready take rounds, and how many go on by themselves."""
        bystanders = sum(one.runs_on or not one.num_new_tokens for one in self._ready)
        return Ready(len(self._ready) - bystanders, bystanders)

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
            # Also if no row of it fits this step: who has its pages takes turns with the others.
            if self._has_room(session, batch, now):
                rows = session.next_rows(room.prompt_rows)
                if room.fits(rows):
                    room.take(rows)
                    batch[session] = replace(rows, pages=self._pages_of(session, rows))
        for session in batch:
            self._ready.pop(session)
        return list(batch.values())

    def _line(self) -> list[Session]:
        """Return the ready sessions in the order of their turns."""
        begun = [session for session in self._ready if session.memory.pages]
        others = [session for session in self._ready if not session.memory.pages]
        begun.sort(key=lambda session: -session.priority)
        return begun + sorted(others, key=self._rank)

    def _pages_of(self, session: Session, rows: Rows) -> tuple[int, ...]:
        return tuple(session.memory.pages[: pages_for(rows.num_slots)])

    def _has_room(self, session: Session, batch: dict[Session, Rows], now: float) -> bool:
        """Get a session the pages for all it has to compute; what cannot be had leaves no trace."""
        if session.memory.pages:
            return self._make_room(session, batch, now)
        session.cached_len = self.memory.begin(session.memory, session.tokens)
        if self._make_room(session, batch, now):
            return True
        self._free(session)
        return False

    def _make_room(self, session: Session, batch: dict[Session, Rows], now: float) -> bool:
        """Get a session the pages it lacks, from others if it must be. Returns whether it has."""
        lacking = pages_for(session.num_slots) - len(session.memory.pages)
        if lacking <= 0:
            return True
        if lacking <= self.memory.num_obtainable:
            return self.memory.reserve(session.memory, session.num_slots)
        victims = self._victims(session, batch, now)
        promised = sum(len(victim.memory.pages) for victim in victims)
        if lacking > self.memory.num_obtainable + promised:
            return False
        while victims and not self.memory.reserve(session.memory, session.num_slots):
            self._free(victims.pop())
            self.num_preempted += 1
        # Pages that others share were counted, and did not become free.
        return self.memory.reserve(session.memory, session.num_slots)

    def _victims(self, session: Session, batch: dict[Session, Rows], now: float) -> list[Session]:
        """Return who gives up pages for a session, the first of them last: those long silent, and
        then those that came later.
        """
        owners = [
            other
            for other in self._places
            if other.memory.pages and other not in batch and other is not session
        ]
        silent = [other for other in owners if self._is_silent(other, now)]
        later = [other for other in owners if other not in silent and self._later(other, session)]
        return sorted(later, key=self._rank) + sorted(silent, key=self._rank)

    def _is_silent(self, session: Session, now: float) -> bool:
        return session.tree is None and now - self._places[session].silent_since >= _SILENT_S

    def _later(self, session: Session, other: Session) -> bool:
        return self._rank(session) > self._rank(other)

    def _rank(self, session: Session) -> tuple[int, int]:
        return -session.priority, self._places[session].arrival

    def _free(self, session: Session) -> None:
        """Take a session's pages. Its committed tokens have no rows then, as those of a prompt."""
        self.memory.free(session.memory)
        session.cached_len = 0
