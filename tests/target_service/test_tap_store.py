"""Taps are found where they were stored."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.kv_pages import PAGE_LEN
from target_service.tap_store import TapStore

PAGES = 3
slots = st.integers(0, PAGES * PAGE_LEN - 1)


@given(st.lists(st.lists(slots, min_size=1, max_size=9, unique=True), max_size=5))
def test_taps_are_the_last_ones_stored(batches):
    store, expected = TapStore(PAGES, 5, torch.float32), torch.zeros(PAGES * PAGE_LEN, 5)
    for number, batch in enumerate(batches, 1):
        taps_NX = torch.arange(len(batch) * 5.0).view(-1, 5) + 100 * number
        store.store(batch, taps_NX)
        expected[batch] = taps_NX
    assert torch.equal(store.of(range(PAGES * PAGE_LEN)), expected)


def test_taps_that_were_read_are_nobody_elses():
    store = TapStore(PAGES, 5, torch.float32)
    read = store.of([7])
    store.store([7], torch.ones(1, 5))
    assert not read.any()


def test_a_target_without_taps_stores_none():
    store = TapStore(PAGES, 0, torch.float32)
    store.store([1, 2], torch.zeros(2, 0))
    assert store.of([1, 2]).shape == (2, 0)
