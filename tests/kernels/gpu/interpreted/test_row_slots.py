"""Slots of rows against the definition of slots in a pool."""

from itertools import accumulate

import torch

from kernels.gpu.row_slots import find_slots
from kernels.kv_pages import slots_in_pool
from tests.kernels.gpu.proofs.memory_guard import launch_guarded


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def test_slots_follow_the_prefix_in_the_sessions_own_pages():
    """Sessions of 2, 0, 3 and 70 rows, then padding; one lies on the border of two pages."""
    pages_NX = torch.randperm(20, dtype=torch.int32).view(4, 5)
    counts, prefix_lens = [2, 0, 3, 70], [63, 0, 130, 250 - 70]
    first_rows = [0, *accumulate(counts)]
    session_R = torch.cat([torch.full((n,), i) for i, n in enumerate(counts)]).to(torch.int32)
    session_R = torch.cat((session_R, ints(0, 3, 0)))
    slots_R = torch.full((len(session_R),), 12345)
    launch_guarded(
        lambda: find_slots(session_R, ints(*first_rows), ints(*prefix_lens), pages_NX, slots_R),
        slots_R,
    )
    expected = [
        slots_in_pool(pages_X, torch.arange(prefix_len, prefix_len + count))
        for pages_X, prefix_len, count in zip(pages_NX.long(), prefix_lens, counts, strict=True)
    ]
    assert torch.equal(slots_R, torch.cat([*expected, torch.full((3,), -1)]))
