"""The drafter's half of one session: its pages, and what its last real row came out as.

Legend: H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draft_service.kv_pool import KvPool, SessionPages
from kernels.attention import RowLayout, lay_out_branches, lay_out_rows


class Eagle3Follower:
    """Real rows, and room for guesses behind them."""

    def __init__(self, pool: KvPool, first_row: int) -> None:
        self._pages = SessionPages(pool, first_row)
        self._num_real = 0
        self._last_1H: torch.Tensor | None = None

    @property
    def next_row(self) -> int:
        """The position of the next real row."""
        return self._pages.first_row + self._num_real

    @property
    def has_rows(self) -> bool:
        """Whether there is a real row, and so something to go by."""
        return self._last_1H is not None

    @property
    def last_1H(self) -> torch.Tensor:  # noqa: N802
        """What the last real row came out as."""
        assert self._last_1H is not None, "there is no row yet"
        return self._last_1H

    def reserve(self, num_rows: int) -> None:
        """Make room for so many rows after the real ones. Raises KvPoolFullError."""
        self._pages.reserve(self._num_real + num_rows)

    def close(self) -> None:
        """Give all pages back."""
        self._pages.keep(0)

    def take_in(self, num_rows: int, last_1H: torch.Tensor) -> None:
        """So many rows more are real."""
        self._num_real += num_rows
        self._last_1H = last_1H

    def forget_guesses(self) -> None:
        """Give back the pages in which there are guesses only."""
        self._pages.keep(self._num_real)

    def chain(self, num_rows: int, first: int = 0) -> RowLayout:
        """Lay out rows in a chain, the first of them `first` rows behind the real ones."""
        parents = range(-1, num_rows - 1)
        pages = self._pages
        return lay_out_rows(pages.pages_X, self._num_real + first, parents, pages.first_row)

    def branches(self, paths: Sequence[Sequence[int]]) -> RowLayout:
        """Lay out rows by their paths, of rows that are counted from behind the real ones."""
        pages = self._pages
        return lay_out_branches(pages.pages_X, self._num_real, paths, pages.first_row)
