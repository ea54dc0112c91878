"""Who is told of sessions that may be recorded. Sans-I/O but for a queue a watcher."""

from __future__ import annotations

import asyncio

from target_service.session import Session

# A watcher that is further behind misses sessions.
_MOST_UNREAD = 1024


class SessionWatch:
    """The watchers, none of whom is ever waited for."""

    def __init__(self) -> None:
        self._watchers: set[asyncio.Queue[Session]] = set()

    def watch(self) -> asyncio.Queue[Session]:
        """Return a queue that every session opened from now on will be put in."""
        queue: asyncio.Queue[Session] = asyncio.Queue(_MOST_UNREAD)
        self._watchers.add(queue)
        return queue

    def leave(self, queue: asyncio.Queue[Session]) -> None:
        """Watch no longer."""
        self._watchers.discard(queue)

    def tell(self, session: Session) -> None:
        """A session that may be recorded was opened."""
        for queue in self._watchers:
            if not queue.full():
                queue.put_nowait(session)
