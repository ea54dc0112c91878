"""The pages of a drafter's KV cache: which are free, and which a session has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from kernels.kv_pages import num_pages_for


class KvPoolFullError(Exception):
    """No page is free now. One may be after other sessions have closed."""


class KvUsage(NamedTuple):
    """How many pages are in use, and how many there are."""

    used: int
    total: int


class KvPool:
    """The numbers of the pages that all sessions of a drafter share."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._free = list(reversed(range(num_pages)))

    @property
    def usage(self) -> KvUsage:
        return KvUsage(self.num_pages - len(self._free), self.num_pages)

    def take(self) -> int:
        """Return a page. Raises KvPoolFullError if none is free."""
        if not self._free:
            raise KvPoolFullError(f"all {self.num_pages} KV pages of the drafter are in use")
        return self._free.pop()

    def give_back(self, pages: list[int]) -> None:
        """Take pages back, none of them free."""
        self._free.extend(pages)
        assert len(self._free) <= self.num_pages, "a page was given back twice"


class SessionPages:
    """One session's pages, as many as it needs now. Slot s is the row at first_row + s."""

    def __init__(self, pool: KvPool, first_row: int) -> None:
        self.first_row = first_row
        self._pool = pool
        self._pages: list[int] = []
        self._pages_X: torch.Tensor | None = None

    @property
    def pages(self) -> Sequence[int]:
        """The pages in the order of their slots."""
        return self._pages

    @property
    def pages_X(self) -> torch.Tensor:  # noqa: N802
        """The same on the CPU."""
        if self._pages_X is None:
            self._pages_X = torch.tensor(self._pages, dtype=torch.int64)
        return self._pages_X

    def reserve(self, num_slots: int) -> None:
        """Take the pages that so many slots still lack. Raises KvPoolFullError."""
        while len(self._pages) < num_pages_for(num_slots):
            self._pages.append(self._pool.take())
            self._pages_X = None

    def keep(self, num_slots: int) -> None:
        """Give the pages back that so many slots do not need."""
        kept = num_pages_for(num_slots)
        if kept < len(self._pages):
            self._pool.give_back(self._pages[kept:])
            del self._pages[kept:]
            self._pages_X = None
