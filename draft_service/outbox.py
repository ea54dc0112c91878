"""What a session's client is told next. For the event loop only."""

from __future__ import annotations

import asyncio

from protos.messages import DraftTree


class Outbox:
    """The newest tree, or how the session ended.

    A tree that the client did not take before the next one came is stale, and dropped.
    """

    def __init__(self) -> None:
        self._tree: DraftTree | None = None
        self._ended = False
        self._error: Exception | None = None
        self._news = asyncio.Event()

    @property
    def has_ended(self) -> bool:
        """Whether the session ended here."""
        return self._ended

    def put(self, tree: DraftTree) -> None:
        """Tell the client of a tree."""
        self._tree = tree
        self._news.set()

    def end(self, error: Exception | None = None) -> None:
        """End the session, well or by an error. What ended it first counts."""
        if not self._ended:
            self._ended, self._error = True, error
            self._news.set()

    async def get(self) -> DraftTree | None:
        """Return the next tree, or None after the last one. Raises the error that ended it."""
        while self._tree is None and not self._ended:
            self._news.clear()
            await self._news.wait()
        tree, self._tree = self._tree, None
        if tree is None and self._error is not None:
            raise self._error
        return tree
