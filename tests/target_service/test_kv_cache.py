"""Slots are promised exactly once, and a compacted cache holds the accepted path in order."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.kv_slots import values_of_blocks, write_rows
from target_service.kv_cache import KvCache, KvPool, KvPoolFullError, KvShape

SHAPE = KvShape(
    num_layers=2, num_kv_heads=3, head_dim=4, dtype=torch.float32, device=torch.device("cpu")
)


def numbered_rows(first: int, rows: int) -> torch.Tensor:
    """Return [R, C, D] whose every entry tells the row."""
    return torch.arange(first, first + rows).float()[:, None, None].expand(rows, 3, 4)


def write(cache: KvCache, layer: int, slot: int, k: torch.Tensor, v: torch.Tensor) -> None:
    write_rows(cache.keys_LCSD[layer], cache.values_LCBDK[layer], slot, k, v)


def filled(num_slots: int) -> KvCache:
    """Return a cache whose slot i holds i as a key and -i as a value."""
    cache = KvCache(SHAPE, num_slots)
    for layer in range(SHAPE.num_layers):
        rows = numbered_rows(0, num_slots)
        write(cache, layer, 0, rows, -rows)
    return cache


def rows_of(cache: KvCache) -> list[int]:
    """Return the row each slot holds, if all layers, heads and values agree."""
    numbers = cache.keys_LCSD[0, 0, :, 0]
    assert torch.equal(cache.keys_LCSD, numbers[:, None].expand_as(cache.keys_LCSD))
    for keys_CSD, values_CBDK in zip(cache.keys_LCSD, cache.values_LCBDK, strict=True):
        assert torch.equal(values_of_blocks(values_CBDK), -keys_CSD)
    return [int(number) for number in numbers]


@given(slot=st.integers(0, 10), data=st.data())
def test_an_accepted_path_ends_up_behind_the_root_and_nothing_before_it_moves(slot, data):
    nodes = data.draw(st.integers(0, 12))
    path = sorted(data.draw(st.sets(st.integers(1, max(nodes, 1)), max_size=nodes)))
    cache = filled(64)
    cache.compact(slot, path)
    expected = [*range(slot + 1), *(slot + node for node in path)]
    assert rows_of(cache)[: len(expected)] == expected


def test_rows_are_written_to_their_layer_and_slots_only():
    cache = KvCache(SHAPE, 64)
    write(cache, 1, 5, numbered_rows(7, 2), numbered_rows(7, 2))
    assert not cache.keys_LCSD[0].any()
    assert cache.keys_LCSD[1, :, :, 0].tolist() == [[0, 0, 0, 0, 0, 7, 8, *[0] * 57]] * 3


def test_a_fresh_cache_is_finite():
    """Attention multiplies slots nobody may see by zero: NaN would stay NaN."""
    cache = KvCache(SHAPE, 64)
    assert not cache.keys_LCSD.any()
    assert not cache.values_LCBDK.any()


@settings(max_examples=50)
@given(st.lists(st.one_of(st.integers(1, 500), st.just(0)), max_size=40))
def test_the_pool_counts_what_is_open_whatever_is_opened_refused_and_closed(requests):
    """A positive request opens so many tokens; 0 closes the oldest cache."""
    pool, caches = KvPool(SHAPE, 1024), []
    for tokens in requests:
        if not tokens:
            if caches:
                pool.close(caches.pop(0))
        elif -(-tokens // 64) * 64 <= 1024 - pool.num_reserved:
            caches.append(pool.open(tokens))
            assert 0 <= caches[-1].num_slots - tokens < 64
        else:
            free = 1024 - pool.num_reserved
            with pytest.raises(KvPoolFullError, match=f"{free} of 1024 are free"):
                pool.open(tokens)
        assert pool.num_reserved == sum(cache.num_slots for cache in caches)
    for cache in caches:
        pool.close(cache)
    assert pool.num_reserved == 0


def test_caches_of_a_pool_share_nothing():
    pool = KvPool(SHAPE, 256)
    one, other = pool.open(64), pool.open(64)
    write(one, 0, 0, numbered_rows(1, 64), numbered_rows(1, 64))
    assert not other.keys_LCSD.any()


def test_a_cache_closed_twice_is_our_own_mistake():
    pool = KvPool(SHAPE, 128)
    cache = pool.open(64)
    pool.close(cache)
    with pytest.raises(AssertionError, match="twice"):
        pool.close(cache)
