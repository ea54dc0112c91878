"""Where the rows of a step lie among the slots of all pages: found once, for all layers.

    slot = prefix_len + how many rows of the session come before,  in page pages[slot // 64]

Legend: R rows, N sessions (N1 = N + 1), X pages of a session.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

from kernels.kv_pages import PAGE_LEN

_PAGE = tl.constexpr(PAGE_LEN)
_TILE_ROWS = 64


def find_slots(
    session_R: torch.Tensor,
    first_row_N1: torch.Tensor,
    prefix_len_N: torch.Tensor,
    pages_NX: torch.Tensor,
    slots_R: torch.Tensor,
) -> None:
    """Find where rows lie among the slots of all pages, once a step, for all layers.

    A session's rows are neighbours, and follow its prefix. Rows from first_row_N1[N] on are
    padding; they lie nowhere, which is -1.
    """
    rows, (sessions, pages) = len(slots_R), pages_NX.shape
    _find_slots[(triton.cdiv(rows, _TILE_ROWS),)](
        session_R,
        first_row_N1,
        prefix_len_N,
        pages_NX,
        slots_R,
        rows,
        sessions,
        pages,
        tile=_TILE_ROWS,
        num_warps=1,
    )


@triton.jit(do_not_specialize=["rows", "sessions", "pages"])
@no_type_check
def _find_slots(
    session_R,
    first_row_N1,
    prefix_len_N,
    pages_NX,
    slots_R,
    rows,
    sessions,
    pages,
    tile: tl.constexpr,
):
    row = tl.program_id(0) * tile + tl.arange(0, tile)
    is_real = row < tl.load(first_row_N1 + sessions)
    session = tl.load(session_R + row, mask=is_real, other=0)
    first_row = tl.load(first_row_N1 + session)
    slot = tl.load(prefix_len_N + session) + row - first_row
    page = tl.load(pages_NX + session * pages + slot // _PAGE, mask=is_real, other=0)
    in_pool = page.to(tl.int64) * _PAGE + slot % _PAGE
    tl.store(slots_R + row, tl.where(is_real, in_pool, -1), mask=row < rows)
