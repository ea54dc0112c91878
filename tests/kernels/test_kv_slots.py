"""What is written to a slot is read from it, whole blocks and single slots alike.

Legend: C key-value heads, S slots, D head size, B blocks of K = 64 slots, R rows, L layers.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.kv_slots import (
    KEY_BLOCK,
    move_slots,
    new_slots,
    values_of_blocks,
    values_of_slots,
    whole_blocks,
    write_rows,
)

SLOTS = 3 * KEY_BLOCK
slots = st.integers(0, SLOTS - 1)


def filled():
    """Return slots [1 layer, 2 heads] whose keys and values are random, and both as [S, 2, 4]."""
    generator = torch.Generator().manual_seed(0)
    k_SCD, v_SCD = (torch.randn(SLOTS, 2, 4, generator=generator) for _ in range(2))
    keys, values = new_slots([1, 2], SLOTS, 4, k_SCD)
    write_rows(keys[0], values[0], 0, k_SCD, v_SCD)
    return keys, values, k_SCD, v_SCD


@given(st.integers(0, 1000))
def test_blocks_are_whole_and_no_more_than_needed(num_slots):
    assert whole_blocks(num_slots) % KEY_BLOCK == 0
    assert 0 <= whole_blocks(num_slots) - num_slots < KEY_BLOCK


def test_new_slots_are_zero_and_whole_blocks():
    keys, values = new_slots([5, 2], 128, 6, torch.ones(0, dtype=torch.bfloat16))
    assert (keys.shape, values.shape) == ((5, 2, 128, 6), (5, 2, 2, 6, 64))
    assert keys.dtype == values.dtype == torch.bfloat16
    assert not keys.any()
    assert not values.any()
    with pytest.raises(AssertionError):
        new_slots([1], 65, 4, torch.ones(0))


def test_blocks_are_read_slot_after_slot():
    keys, values, k_SCD, v_SCD = filled()
    assert torch.equal(keys[0], k_SCD.transpose(0, 1))
    assert torch.equal(values_of_blocks(values[0]), v_SCD.transpose(0, 1))


@given(st.lists(st.tuples(slots, slots), min_size=1, max_size=5))
def test_any_slots_are_read_in_any_order(pairs):
    _, values, _, v_SCD = filled()
    slots_RT = torch.tensor(pairs)
    assert torch.equal(values_of_slots(values[0], slots_RT), v_SCD[slots_RT].movedim(2, 0))


@given(slot=slots, rows=st.integers(1, 70))
def test_rows_are_written_to_their_slots_and_no_others(slot, rows):
    keys, values, k_SCD, v_SCD = filled()
    rows = min(rows, SLOTS - slot)
    k_RCD, v_RCD = torch.full((rows, 2, 4), 7.0), torch.full((rows, 2, 4), 8.0)
    write_rows(keys[0], values[0], slot, k_RCD, v_RCD)
    k_SCD[slot : slot + rows], v_SCD[slot : slot + rows] = k_RCD, v_RCD
    assert torch.equal(keys[0], k_SCD.transpose(0, 1))
    assert torch.equal(values_of_blocks(values[0]), v_SCD.transpose(0, 1))


@given(source=st.lists(slots, min_size=1, max_size=20, unique=True), target=st.integers(0, 170))
def test_moved_slots_lie_in_the_order_given(source, target):
    """Sources may lie among the targets: all are read before one is written."""
    keys, values, k_SCD, v_SCD = filled()
    move_slots(keys, values, source, target)
    moved = slice(target, target + len(source))
    k_SCD[moved], v_SCD[moved] = k_SCD[source], v_SCD[source]
    assert torch.equal(keys[0], k_SCD.transpose(0, 1))
    assert torch.equal(values_of_blocks(values[0]), v_SCD.transpose(0, 1))
