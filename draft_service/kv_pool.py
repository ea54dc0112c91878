"""The pages of a drafter's KV cache: which are free, and which a session has."""

from __future__ import annotations

import torch

from kernels.kv_pages import KvPages, num_pages_for


class KvPoolFullError(Exception):
    """No page is free now. One may be after other sessions have closed."""


class KvPool:
    """The pages that all sessions of a drafter share."""

    def __init__(self, kv: KvPages) -> None:
        self.kv = kv
        self._free = list(reversed(range(kv.num_pages)))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """Return a page. Raises KvPoolFullError if none is free."""
        if not self._free:
            raise KvPoolFullError(f"all {self.kv.num_pages} KV pages of the drafter are in use")
        return self._free.pop()

    def give_back(self, pages: list[int]) -> None:
        """Take pages back, none of them free."""
        self._free.extend(pages)
        assert len(self._free) <= self.kv.num_pages, "a page was given back twice"


class SessionPages:
    """One session's pages, growing with it. Slot s holds the row at position first_row + s."""

    def __init__(self, pool: KvPool, first_row: int) -> None:
        self.first_row = first_row
        self._pool = pool
        self._pages: list[int] = []

    @property
    def kv(self) -> KvPages:
        return self._pool.kv

    def reserve(self, num_slots: int) -> torch.Tensor:
        """Return the pages of so many slots, taking what is missing. Raises KvPoolFullError."""
        needed = num_pages_for(num_slots)
        while len(self._pages) < needed:
            self._pages.append(self._pool.take())
        return torch.tensor(self._pages[:needed], device=self.kv.keys_PLCKD.device)

    def close(self) -> None:
        """Give all pages back."""
        self._pool.give_back(self._pages)
        self._pages = []
