"""Where rows lie, and what is kept of a session from step to step: exact, too.

Legend: R rows, N sessions, P places, H hidden, S trees, W places of a frontier, X pages of a
session.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.gpu_check.case import Case, Sizes, bytes_of, excess_of_equal, normal
from kernels.gpu.frontier import Frontier
from kernels.gpu.frontier_rows import FrontierRows, Roots, frontier_rows
from kernels.gpu.last_states import keep_last_states
from kernels.gpu.row_slots import find_slots
from kernels.kv_pages import num_pages_for, slots_in_pool

_SESSIONS = 4
_WIDTH, _DEPTH = 4, 3


def cases(sizes: Sizes, device: torch.device) -> Iterator[Case]:
    """Yield slots of rows, rows of a frontier, and last hidden states."""
    yield _slots(sizes, device)
    yield _frontier_rows(sizes, device)
    yield _last_states(sizes, device)


def _pages(slots: int, device: torch.device) -> torch.Tensor:
    """Return pages of each session, in no order, [N, X] of int32."""
    count = num_pages_for(slots)
    return torch.randperm(_SESSIONS * count, device=device).view(_SESSIONS, count).int()


def _slots(sizes: Sizes, device: torch.device) -> Case:
    """Sessions of as many rows each, behind a context."""
    numbers_N = torch.arange(_SESSIONS, dtype=torch.int32, device=device)
    session_R = numbers_N.repeat_interleave(sizes.rows)
    first_row_N1 = torch.arange(_SESSIONS + 1, device=device).int() * sizes.rows
    prefix_len_N, pages_NX = sizes.context + numbers_N, _pages(sizes.context + 99, device)
    slots_R = torch.empty(len(session_R), dtype=torch.int64, device=device)

    def excess() -> float:
        rows = torch.arange(sizes.rows, device=device)
        pairs = zip(pages_NX.long(), prefix_len_N, strict=True)
        expected = [slots_in_pool(pages_X, prefix_len + rows) for pages_X, prefix_len in pairs]
        return excess_of_equal(slots_R, torch.cat(expected))

    return Case(
        "find_slots",
        lambda: find_slots(session_R, first_row_N1, prefix_len_N, pages_NX, slots_R),
        (slots_R,),
        excess,
        bytes_of(session_R, slots_R),
    )


def _frontier_rows(sizes: Sizes, device: torch.device) -> Case:
    """Trees of which each has a place more without a node than the one before."""
    numbers_S = torch.arange(_SESSIONS, device=device)
    places_W = torch.arange(_WIDTH, device=device)
    is_node_SW = places_W < _WIDTH - numbers_S[:, None]
    ancestors_SW = torch.randint(1, 2**60, is_node_SW.shape, device=device)
    nodes_SW = torch.where(is_node_SW, places_W, -1).int()
    frontier = Frontier(ancestors_SW, nodes_SW, ancestors_SW.double(), ancestors_SW, ancestors_SW)
    real_lens_S, pages_SX = (sizes.context + numbers_S).int(), _pages(sizes.context + 99, device)
    lengths_S = real_lens_S.long() + 10
    longs_R = torch.empty(_SESSIONS * _WIDTH, dtype=torch.int64, device=device)
    rows = FrontierRows(longs_R.int(), longs_R.int(), longs_R, longs_R.clone(), longs_R.clone())

    def excess() -> float:
        level_SW, real_SW = _DEPTH * is_node_SW, real_lens_S[:, None].expand_as(is_node_SW)
        slots_SW = real_SW + (_DEPTH - 1) * _WIDTH + places_W
        pooled_SW = torch.stack(
            [slots_in_pool(*of_one) for of_one in zip(pages_SX.long(), slots_SW, strict=True)]
        )
        expected = FrontierRows(
            real_SW - 1 + level_SW,
            lengths_S[:, None] - 2 + level_SW,
            ancestors_SW * is_node_SW,
            torch.where(is_node_SW, pooled_SW, -1),
            lengths_S[:, None] + level_SW,
        )
        pairs = zip(rows, expected, strict=True)
        return max(excess_of_equal(one_R.long(), two.flatten().long()) for one_R, two in pairs)

    def launch() -> None:
        frontier_rows(frontier, Roots(real_lens_S, lengths_S, pages_SX), _DEPTH, rows)

    return Case("frontier_rows", launch, tuple(rows), excess, bytes_of(*rows))


def _last_states(sizes: Sizes, device: torch.device) -> Case:
    """The last session has no new row, and goes on from what was kept."""
    h_RH = normal(sizes.rows, sizes.hidden, device=device)
    kept_PH = normal(2 * _SESSIONS, sizes.hidden, device=device)
    places_N = torch.randperm(2 * _SESSIONS, device=device)[:_SESSIONS].int()
    rows_N = torch.randint(sizes.rows, (_SESSIONS,), device=device).int()
    rows_N[-1] = -1
    states_PH, last_NH = kept_PH.clone(), torch.empty_like(kept_PH[:_SESSIONS])

    def excess() -> float:
        expected_PH = kept_PH.clone()
        expected_PH[places_N[:-1].long()] = h_RH[rows_N[:-1].long()]
        return max(
            excess_of_equal(states_PH, expected_PH),
            excess_of_equal(last_NH, expected_PH[places_N.long()]),
        )

    return Case(
        "keep_last_states",
        lambda: keep_last_states(h_RH, rows_N, places_N, states_PH, last_NH),
        (last_NH,),
        excess,
        3 * bytes_of(last_NH),
    )
