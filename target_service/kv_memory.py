"""Which pages a session has: found in the prefix cache, taken from the pool, kept, given back.

Sans-I/O: knows neither tensors nor sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from target_service.page_pool import PagePool
from target_service.prefix_cache import CachedPage, PrefixCache

# As kernels.kv_pages has them; this module knows no tensors.
PAGE_LEN = 64


def pages_for(num_slots: int) -> int:
    """Return how many pages hold so many slots."""
    return -(-num_slots // PAGE_LEN)


def slots_of(pages: Sequence[int], positions: Sequence[int]) -> list[int]:
    """Return where positions of a text lie among the slots of all pages."""
    return [pages[at // PAGE_LEN] * PAGE_LEN + at % PAGE_LEN for at in positions]


@dataclass(eq=False)
class SessionPages:
    """A session's pages in the order of its text. The first ones may be kept for others, too."""

    pages: list[int] = field(default_factory=list)
    kept: list[CachedPage] = field(default_factory=list)


class KvMemory:
    """The pages of the KV cache, and the beginnings of texts that lie in them."""

    def __init__(self, num_pages: int) -> None:
        self.pool = PagePool(num_pages)
        self.prefixes = PrefixCache(self.pool, PAGE_LEN)

    @property
    def num_held(self) -> int:
        """Pages that sessions hold."""
        return self.pool.num_pages - self.pool.num_free - self.prefixes.num_unused

    @property
    def num_obtainable(self) -> int:
        """Pages that `reserve` can take."""
        return self.pool.num_free + self.prefixes.num_unused

    def num_known(self, tokens: list[int]) -> int:
        """Return how many tokens at the beginning of a text need not be computed."""
        return len(self.prefixes.find(tokens[:-1])) * PAGE_LEN

    def begin(self, mine: SessionPages, tokens: list[int]) -> int:
        """Give a session without pages those that others computed; return how many slots they hold.

        One token is always left to compute: the text's last, whose logits are wanted.
        """
        assert not mine.pages, "a session begins once"
        mine.kept = self.prefixes.share(tokens[:-1])
        mine.pages = [cached.page for cached in mine.kept]
        return len(mine.pages) * PAGE_LEN

    def reserve(self, mine: SessionPages, num_slots: int) -> bool:
        """Take the pages that so many slots lack. Returns whether all could be had."""
        while len(mine.pages) < pages_for(num_slots):
            page = self.pool.take()
            if page is not None:
                mine.pages.append(page)
            elif not self.prefixes.give_up_one():
                return False
        return True

    def keep(self, mine: SessionPages, tokens: list[int], cached_len: int) -> None:
        """Keep the pages that are full now, of `cached_len` committed tokens, for others."""
        for place in range(len(mine.kept), cached_len // PAGE_LEN):
            text = tuple(tokens[place * PAGE_LEN : (place + 1) * PAGE_LEN])
            parent = mine.kept[-1] if mine.kept else None
            cached = self.prefixes.keep(parent, text, mine.pages[place])
            mine.kept.append(cached)
            mine.pages[place] = cached.page

    def free(self, mine: SessionPages) -> None:
        """Let go of all of a session's pages. Those that are kept stay until pages are short."""
        for page in reversed(mine.pages):
            self.pool.release(page)
        mine.pages, mine.kept = [], []
