"""Buckets of steps: for how many rows, nodes and sessions a step is captured, and which one fits.

Sessions that are missing cost next to nothing, so there are few sizes of them. Rows that are
missing are computed: up to 16 cost what one does, and beyond that sizes double. The head is for
nodes of trees alone: for all rows up to 64, which read its weights once; in larger steps, most of
whose rows are a prompt's, for 64 or for all; and for none if a step has no tree. Sans-I/O: knows
neither tensors nor sockets.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

_ROWS = (1, 4, 16, *(32 << doubled for doubled in range(16)))
_SESSIONS = (1, 8, 64, 512)
_HEAD_ROWS = 64
"""Rows of a product that read its weights once."""


class Bucket(NamedTuple):
    """The most rows, nodes of trees and sessions of a step."""

    rows: int
    nodes: int
    sessions: int


class Buckets:
    """The sizes of steps of up to so many rows and sessions."""

    def __init__(self, rows: int, sessions: int) -> None:
        self.largest = Bucket(rows, rows, sessions)
        self._rows = _up_to(rows, _ROWS)
        self._sessions = _up_to(sessions, _SESSIONS)

    def fitting(self, rows: int, nodes: int, sessions: int) -> Bucket:
        """Return the smallest bucket. Raises ValueError for a step that is too large."""
        needed = Bucket(rows, nodes, sessions)
        if any(count > most for count, most in zip(needed, self.largest, strict=True)):
            raise ValueError(f"the largest step is {self.largest}, got {needed}")
        fitting = _fitting(rows, self._rows)
        return Bucket(
            fitting, _fitting(nodes, _node_sizes(fitting)), _fitting(sessions, self._sessions)
        )

    def usual(self) -> Iterator[Bucket]:
        """Return the buckets of all steps that have a tree: a prompt without one comes alone."""
        for rows, sessions in product(self._rows, self._sessions):
            fewer = max((size for size in self._sessions if size < sessions), default=0)
            if fewer < rows:
                yield from (Bucket(rows, nodes, sessions) for nodes in _node_sizes(rows)[1:])


def _up_to(most: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    return (*(size for size in sizes if size < most), most)


def _node_sizes(rows: int) -> tuple[int, ...]:
    return (0, rows) if rows <= _HEAD_ROWS else (0, _HEAD_ROWS, rows)


def _fitting(count: int, sizes: tuple[int, ...]) -> int:
    return next(size for size in sizes if size >= count)
