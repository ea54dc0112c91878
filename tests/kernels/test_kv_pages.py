"""What is written to a slot is read from it, wherever its page lies, and nothing else changes.

Legend: P pages, L layers, C key-value heads, K = 64 slots of a page, J = 32 pairs of them, D head
size, B pages of a session, S slots of it, R rows, T positions of a tail.
"""

import resource

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.kv_pages import (
    PAGE_LEN,
    new_pages,
    new_shared_pages,
    num_pages_for,
    slots_in_pool,
    values_of_pages,
    values_of_slots,
    whole_pages,
)

PAGES_B = torch.tensor([2, 0, 4])
SLOTS = len(PAGES_B) * PAGE_LEN
slots = st.integers(0, SLOTS - 1)


def filled():
    """Return five pages, of which three hold a session's random rows in layer 1, and those rows."""
    generator = torch.Generator().manual_seed(0)
    k_SCD, v_SCD = (torch.randn(SLOTS, 2, 4, generator=generator) for _ in range(2))
    kv = new_pages(5, 3, 2, 4, k_SCD)
    kv.write(1, slots_in_pool(PAGES_B, torch.arange(SLOTS)), k_SCD, v_SCD)
    return kv, k_SCD, v_SCD


def filled_with_shared():
    """The same of keys that are their own values."""
    k_SCD = torch.randn(SLOTS, 2, 4, generator=torch.Generator().manual_seed(0))
    kv = new_shared_pages(5, 3, 2, 4, k_SCD)
    kv.write(1, slots_in_pool(PAGES_B, torch.arange(SLOTS)), k_SCD, k_SCD)
    return kv, k_SCD, k_SCD


def assert_holds(kv, k_SCD, v_SCD):
    """Assert that the session holds these rows in layer 1, and everything else is zero."""
    keys_CSD, values_CBJD2 = kv.of_session(1, PAGES_B)
    assert torch.equal(keys_CSD, k_SCD.transpose(0, 1))
    assert torch.equal(values_of_pages(values_CBJD2), v_SCD.transpose(0, 1))
    for part in kv:
        assert not part[[1, 3]].any()
        assert not part[:, [0, 2]].any()


@given(st.integers(0, 1000))
def test_pages_are_whole_and_no_more_than_needed(num_slots):
    assert whole_pages(num_slots) == num_pages_for(num_slots) * PAGE_LEN
    assert 0 <= whole_pages(num_slots) - num_slots < PAGE_LEN


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_new_pages_are_zero(dtype):
    keys, values = new_pages(7, 5, 2, 6, torch.ones(0, dtype=dtype))
    assert (keys.shape, values.shape) == ((7, 5, 2, 64, 6), (7, 5, 2, 32, 6, 2))
    assert keys.dtype == values.dtype == dtype
    assert not keys.any()
    assert not values.any()


def test_pages_take_no_memory_before_they_are_used():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kv = new_pages(128, 32, 8, 128, torch.empty(0))
    assert kv.num_pages == 128
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib * 1024 < sum(part.nbytes for part in kv) / 100


def test_a_session_is_read_slot_after_slot():
    assert_holds(*filled())


def test_keys_that_are_their_own_values_lie_in_memory_once():
    kv, k_SCD, v_SCD = filled_with_shared()
    assert_holds(kv, k_SCD, v_SCD)
    keys, values = (part.untyped_storage() for part in kv)
    assert keys.data_ptr() == values.data_ptr()
    assert keys.nbytes() == kv.keys_PLCKD.numel() * kv.keys_PLCKD.element_size()


@given(st.lists(st.tuples(slots, slots), min_size=1, max_size=5))
def test_any_slots_are_read_in_any_order(pairs):
    kv, _, v_SCD = filled()
    slots_RT = torch.tensor(pairs)
    values_CBJD2 = kv.of_session(1, PAGES_B)[1]
    assert torch.equal(values_of_slots(values_CBJD2, slots_RT), v_SCD[slots_RT].movedim(2, 0))


@given(slot=slots, rows=st.integers(1, 70))
def test_rows_are_written_to_their_slots_and_pages_they_begin_are_emptied(slot, rows):
    kv, k_SCD, v_SCD = filled()
    end = min(slot + rows, SLOTS)
    k_RCD, v_RCD = torch.full((end - slot, 2, 4), 7.0), torch.full((end - slot, 2, 4), 8.0)
    kv.write(1, slots_in_pool(PAGES_B, torch.arange(slot, end)), k_RCD, v_RCD)
    for first in range(0, SLOTS, PAGE_LEN):
        if slot <= first < end:
            k_SCD[first : first + PAGE_LEN] = v_SCD[first : first + PAGE_LEN] = 0
    k_SCD[slot:end], v_SCD[slot:end] = k_RCD, v_RCD
    assert_holds(kv, k_SCD, v_SCD)


@pytest.mark.parametrize("fill", [filled, filled_with_shared])
@given(source=st.lists(slots, min_size=1, max_size=20, unique=True), target=st.integers(0, 170))
def test_moved_slots_lie_in_the_order_given(fill, source, target):
    """Sources may lie among the targets: all are read before one is written."""
    kv, k_SCD, v_SCD = fill()
    moved = torch.arange(target, target + len(source))
    kv.move(slots_in_pool(PAGES_B, torch.tensor(source)), slots_in_pool(PAGES_B, moved))
    k_SCD[moved], v_SCD[moved] = k_SCD[source], v_SCD[source]
    assert_holds(kv, k_SCD, v_SCD)
