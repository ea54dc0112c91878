"""The pages of the KV cache, counted: how many hold on to each.

Sans-I/O: knows neither tensors nor sockets. A page is held by every session whose text lies in it,
and by the prefix cache; nobody writes to a page that others hold as well.
"""

from __future__ import annotations


class PagePool:
    """A fixed number of pages."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._holders = [0] * num_pages
        self._free = list(reversed(range(num_pages)))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def holders(self, page: int) -> int:
        """Return how many hold a page."""
        return self._holders[page]

    def take(self) -> int | None:
        """Return a page that nobody held, or None if there is none."""
        if not self._free:
            return None
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def share(self, page: int) -> None:
        """Hold on to a page that somebody holds."""
        assert self._holders[page] > 0, f"page {page} is free"
        self._holders[page] += 1

    def release(self, page: int) -> None:
        """Let go of a page; it is free when nobody holds it."""
        assert self._holders[page] > 0, f"page {page} was released twice"
        self._holders[page] -= 1
        if not self._holders[page]:
            self._free.append(page)
