"""Moved slots keep what they hold."""

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
