"""Rows of a session that have arrived and that its drafter has not yet taken in.

Legend: T rows, X tapped width (layers * hidden).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch


class _Part(NamedTuple):
    tokens: Sequence[int]
    taps_TX: torch.Tensor | None

    def rows(self, rows: slice) -> _Part:
        return _Part(self.tokens[rows], None if self.taps_TX is None else self.taps_TX[rows])


class Backlog:
    """Rows as they arrived, oldest first, to be taken in pieces of any size."""

    def __init__(self) -> None:
        self._parts: deque[_Part] = deque()
        self.num_rows = 0

    @property
    def num_parts(self) -> int:
        """How many of the additions are not yet taken wholly."""
        return len(self._parts)

    def add(self, tokens: Sequence[int], taps_TX: torch.Tensor | None) -> None:
        """Add rows behind the others."""
        if tokens:
            self._parts.append(_Part(tokens, taps_TX))
            self.num_rows += len(tokens)

    def take(self, limit: int) -> tuple[list[int], torch.Tensor | None]:
        """Return tokens and taps of the oldest rows, at most `limit` of them."""
        taken: list[_Part] = []
        while limit and self._parts:
            taken.append(self._first(limit))
            limit -= len(taken[-1].tokens)
        tokens = [token for part in taken for token in part.tokens]
        self.num_rows -= len(tokens)
        taps = [part.taps_TX for part in taken if part.taps_TX is not None]
        return tokens, torch.cat(taps) if taps else None

    def _first(self, limit: int) -> _Part:
        part = self._parts.popleft()
        if len(part.tokens) <= limit:
            return part
        self._parts.appendleft(part.rows(slice(limit, None)))
        return part.rows(slice(limit))
