"""Pages of texts that were computed before, found again by the tokens in them.

A tree whose edges are the tokens of whole pages: a path from the root is the beginning of a text. A
page's keys, values and taps depend on all tokens up to its end and on nothing else, bit for bit, so
a session that begins like another may read its pages. Leaves that no session holds are given up
when pages are short, the longest unused first.

Sans-I/O: knows neither tensors nor sockets.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from target_service.page_pool import PagePool


@dataclass(eq=False)
class CachedPage:
    """A page and what leads to it."""

    page: int
    tokens: tuple[int, ...]
    parent: CachedPage | None
    children: dict[tuple[int, ...], CachedPage] = field(default_factory=dict)


class PrefixCache:
    """The tree, and the order in which its pages were last used."""

    def __init__(self, pool: PagePool, page_len: int) -> None:
        self._pool = pool
        self._page_len = page_len
        self._roots: dict[tuple[int, ...], CachedPage] = {}
        # The longest unused first; a page before its parent, which is used whenever it is.
        self._by_use: OrderedDict[CachedPage, None] = OrderedDict()

    @property
    def num_pages(self) -> int:
        return len(self._by_use)

    @property
    def num_unused(self) -> int:
        """How many pages nobody but the cache holds: they can be had by `give_up_one`."""
        return sum(self._pool.holders(cached.page) == 1 for cached in self._by_use)

    def find(self, tokens: Sequence[int]) -> list[CachedPage]:
        """Return the pages of the longest known beginning of a text, whole pages only."""
        found: list[CachedPage] = []
        children = self._roots
        for start in range(0, len(tokens) - self._page_len + 1, self._page_len):
            cached = children.get(tuple(tokens[start : start + self._page_len]))
            if cached is None:
                break
            found.append(cached)
            children = cached.children
        return found

    def share(self, tokens: Sequence[int]) -> list[CachedPage]:
        """Return what `find` does, held by one more."""
        found = self.find(tokens)
        for cached in reversed(found):
            self._pool.share(cached.page)
            self._by_use.move_to_end(cached)
        return found

    def keep(self, parent: CachedPage | None, tokens: tuple[int, ...], page: int) -> CachedPage:
        """Keep a page after its parent, or return the page that is kept with the same tokens.

        The caller lets go of its own page then, and holds the one that is returned.
        """
        assert len(tokens) == self._page_len, tokens
        children = self._roots if parent is None else parent.children
        cached = children.get(tokens)
        if cached is None:
            cached = children[tokens] = CachedPage(page, tokens, parent)
            self._by_use[cached] = None
            self._pool.share(page)
        elif cached.page != page:
            self._pool.share(cached.page)
            self._pool.release(page)
        self._touch(cached)
        return cached

    def give_up_one(self) -> bool:
        """Free the longest unused page that nobody holds. Returns whether there was one."""
        for cached in self._by_use:
            if not cached.children and self._pool.holders(cached.page) == 1:
                self._remove(cached)
                return True
        return False

    def _touch(self, cached: CachedPage | None) -> None:
        while cached is not None:
            self._by_use.move_to_end(cached)
            cached = cached.parent

    def _remove(self, cached: CachedPage) -> None:
        siblings = self._roots if cached.parent is None else cached.parent.children
        del siblings[cached.tokens]
        del self._by_use[cached]
        self._pool.release(cached.page)
