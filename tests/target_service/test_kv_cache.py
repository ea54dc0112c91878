"""Taps are found where they were stored, and moved slots keep what they hold."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.kv_pages import PAGE_LEN, values_of_pages
from target_service.kv_cache import KvCache, KvShape
from target_service.kv_memory import PAGE_LEN as COUNTED_LEN

SHAPE = KvShape(2, 1, 4, torch.float32, torch.device("cpu"))
PAGES = 3
slots = st.integers(0, PAGES * PAGE_LEN - 1)


def test_pages_are_counted_as_long_as_they_are():
    assert COUNTED_LEN == PAGE_LEN


@given(st.lists(st.lists(slots, min_size=1, max_size=9, unique=True), max_size=5))
def test_taps_are_the_last_ones_stored(batches):
    cache, expected = KvCache(SHAPE, PAGES, 5), torch.zeros(PAGES * PAGE_LEN, 5)
    for number, batch in enumerate(batches, 1):
        taps_NX = torch.arange(len(batch) * 5.0).view(-1, 5) + 100 * number
        cache.store_taps(batch, taps_NX)
        expected[batch] = taps_NX
    assert torch.equal(cache.taps(range(PAGES * PAGE_LEN)), expected)


def test_taps_that_were_read_are_nobody_elses():
    cache = KvCache(SHAPE, PAGES, 5)
    read = cache.taps([7])
    cache.store_taps([7], torch.ones(1, 5))
    assert not read.any()


def test_a_target_without_taps_stores_none():
    cache = KvCache(SHAPE, PAGES, 0)
    cache.store_taps([1, 2], torch.zeros(2, 0))
    assert cache.taps([1, 2]).shape == (2, 0)


def filled() -> KvCache:
    """Return a cache whose slot i holds i in every element of all layers."""
    cache = KvCache(SHAPE, PAGES, 0)
    rows = torch.arange(PAGES * PAGE_LEN)
    numbers_RCD = rows[:, None, None].float().expand(-1, 1, 4)
    for layer in range(SHAPE.num_layers):
        cache.kv.write(layer, rows, numbers_RCD, -numbers_RCD)
    return cache


def slots_held(cache: KvCache) -> list[int]:
    """Return what lies in every slot, which all layers must agree on."""
    found = []
    for layer in range(SHAPE.num_layers):
        keys_CSD, values_CBJD2 = cache.kv.of_session(layer, cache.pages(range(PAGES)))
        assert torch.equal(keys_CSD, -values_of_pages(values_CBJD2))
        found.append(keys_CSD[0, :, 0].tolist())
    assert found[0] == found[1]
    return found[0]


@given(st.dictionaries(slots, slots, max_size=9))
def test_slots_move_as_if_all_at_once(moves):
    """Keys of the dictionary are targets: two slots cannot come to lie in one."""
    cache, expected = filled(), list(range(PAGES * PAGE_LEN))
    cache.move([(source, target) for target, source in moves.items()])
    for target, source in moves.items():
        expected[target] = source
    assert slots_held(cache) == expected
