"""Which session's rows run next: round robin over the sessions that have something to compute.

Sans-I/O: knows neither tensors nor sockets. A long prompt comes back to the end of the line after
every chunk, so it never delays the others by more than one chunk.
"""

from __future__ import annotations

from collections import deque

from target_service.session import Rows, Session


class QueueFullError(Exception):
    """So many sessions wait already that another one would only wait too long."""


class Scheduler:
    """The line of ready sessions."""

    def __init__(self, *, chunk_len: int, max_sessions: int) -> None:
        self._chunk_len = chunk_len
        self._max_sessions = max_sessions
        self._sessions: dict[str, Session] = {}
        self._ready: deque[Session] = deque()

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    @property
    def num_ready(self) -> int:
        return len(self._ready)

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
        self._ready.append(session)

    def close(self, session: Session) -> None:
        """Forget a session, wherever it stands."""
        self._sessions.pop(session.session_id, None)
        if session in self._ready:
            self._ready.remove(session)

    def ready(self, session: Session) -> None:
        """Put a session that has rows to compute at the end of the line."""
        if session.session_id in self._sessions:
            self._ready.append(session)

    def schedule(self) -> Rows | None:
        """Return the next rows to compute, or None if nobody is ready."""
        if not self._ready:
            return None
        return self._ready.popleft().next_rows(self._chunk_len)
