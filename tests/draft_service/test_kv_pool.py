"""Pages belong to one session at a time, and come back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draft_service.kv_pool import KvPool, KvPoolFullError, KvUsage, SessionPages
from kernels.kv_pages import PAGE_LEN, num_pages_for

PAGES = 6


def new_pool():
    return KvPool(PAGES)


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 4 * PAGE_LEN))))
def test_no_page_is_in_two_sessions_and_none_is_lost(events):
    """Whatever sessions reserve and give back, and also when that fails."""
    pool = new_pool()
    sessions = [SessionPages(pool, 0) for _ in range(3)]
    for session, grows, slots in events:
        pages = sessions[session]
        before = pages.pages_X.tolist()
        try:
            pages.reserve(slots) if grows else pages.keep(slots)
        except KvPoolFullError:
            assert pool.usage.used == PAGES
        shared = min(len(before), len(pages.pages_X))
        assert pages.pages_X.tolist()[:shared] == before[:shared]
        held = [page for one in sessions for page in one.pages_X.tolist()]
        assert len(set(held)) == len(held) == pool.usage.used

    for one in sessions:
        one.keep(0)
    assert pool.usage == KvUsage(0, PAGES)


@pytest.mark.parametrize("slots", [0, 1, PAGE_LEN, PAGE_LEN + 1])
def test_a_session_has_the_pages_that_its_slots_need(slots):
    pages = SessionPages(new_pool(), 17)
    pages.reserve(slots)
    pages.reserve(slots // 2)

    assert len(pages.pages_X) == num_pages_for(slots)
    assert pages.pages_X.dtype is torch.int64


def test_a_full_pool_says_so():
    pages = SessionPages(new_pool(), 0)

    with pytest.raises(KvPoolFullError, match=f"all {PAGES} KV pages of the drafter are in use"):
        pages.reserve((PAGES + 1) * PAGE_LEN)
