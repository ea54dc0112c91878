"""A page is free exactly if nobody holds it, in whatever order they are taken and released."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from target_service.page_pool import PagePool

NUM_PAGES = 4


@given(st.lists(st.tuples(st.sampled_from(["take", "share", "release"]), st.integers(0, 99))))
def test_holders_are_counted_exactly(events):
    pool, held = PagePool(NUM_PAGES), Counter()
    for event, which in events:
        mine = sorted(held)
        if event == "take":
            page = pool.take()
            assert (page is None) == (len(mine) == NUM_PAGES)
            assert page not in mine
            if page is not None:
                held[page] = 1
        elif mine:
            page = mine[which % len(mine)]
            getattr(pool, event)(page)
            held[page] += 1 if event == "share" else -1
            held += Counter()
        assert pool.num_free == NUM_PAGES - len(held)
        assert [pool.holders(page) for page in range(NUM_PAGES)] == [
            held[p] for p in range(NUM_PAGES)
        ]


def test_what_nobody_holds_is_neither_shared_nor_released():
    pool = PagePool(1)
    for act in (pool.share, pool.release):
        with pytest.raises(AssertionError):
            act(0)
