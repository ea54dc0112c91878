"""The drafter's half of one session on a GPU: its pages. All it computed lies on the device."""

from __future__ import annotations

from collections.abc import Sequence

from draft_service.graphs import TREE_SLOTS
from draft_service.kv_pool import KvPool, SessionPages


class GpuFollower:
    """Real rows, and room for guesses behind them."""

    def __init__(self, pool: KvPool, first_row: int) -> None:
        self._pages = SessionPages(pool, first_row)
        self.num_real = 0
        """Rows that are taken in, or about to be."""

    @property
    def first_row(self) -> int:
        """The position of the first real row."""
        return self._pages.first_row

    @property
    def next_row(self) -> int:
        """The position of the next real row."""
        return self.first_row + self.num_real

    @property
    def pages(self) -> Sequence[int]:
        """The pages in the order of their slots."""
        return self._pages.pages

    @property
    def state(self) -> int:
        """Where its last hidden state lies: states have the number of the session's first page."""
        return self.pages[0]

    @property
    def is_open(self) -> bool:
        """Whether it still holds the pages of its rows."""
        return bool(self.pages)

    def reserve(self, num_rows: int) -> None:
        """Make room for so many rows after the real ones. Raises KvPoolFullError.

        A tree's rows lie as wide apart as those of the widest tree beside it.
        """
        self._pages.reserve(self.num_real + max(num_rows, TREE_SLOTS))

    def close(self) -> None:
        """Give all pages back."""
        self._pages.keep(0)

    def take_in(self, num_rows: int) -> None:
        """So many rows more are real."""
        self.num_real += num_rows

    def forget_guesses(self) -> None:
        """Give back the pages in which there are guesses only."""
        self._pages.keep(self.num_real)
