"""Rows come out of a backlog in the order in which they went in, in pieces of any size."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from draft_service.backlog import Backlog


def taps_of(tokens):
    """Return taps that tell which token they came with."""
    return torch.tensor(tokens, dtype=torch.float32)[:, None].expand(-1, 3)


@given(st.lists(st.integers(0, 5), max_size=8), st.lists(st.integers(1, 7), max_size=30))
def test_rows_leave_in_order_with_their_taps(sizes, limits):
    backlog, tokens, taken = Backlog(), list(range(sum(sizes))), []
    for end, size in zip(torch.tensor(sizes).cumsum(0).tolist(), sizes, strict=True):
        part = tokens[end - size : end]
        backlog.add(part, taps_of(part))
    for limit in [*limits, 100]:
        rows, taps = backlog.take(limit)

        assert len(rows) == min(limit, len(tokens) - len(taken))
        assert taps is None if not rows else torch.equal(taps, taps_of(rows))
        taken += rows
        assert backlog.num_rows == len(tokens) - len(taken)

    assert taken == tokens
    assert backlog.num_parts == 0


def test_a_part_counts_until_its_last_row_is_taken():
    backlog = Backlog()
    for part in ([1, 2], [3], [4, 5]):
        backlog.add(part, None)

    counts = [backlog.num_parts]
    for limit in (1, 1, 2, 1):
        assert backlog.take(limit)[1] is None
        counts.append(backlog.num_parts)

    assert counts == [3, 3, 2, 1, 0]
