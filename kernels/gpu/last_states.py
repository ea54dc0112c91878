"""The last hidden state of each session, kept on the device from one step to the next.

A session that has new rows leaves the last one's state in its place and grows from it; one that has
none grows from what lies there.

Legend: R rows, N sessions, P places, H hidden.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl


def keep_last_states(
    h_RH: torch.Tensor,
    last_rows_N: torch.Tensor,
    places_N: torch.Tensor,
    states_PH: torch.Tensor,
    last_NH: torch.Tensor,
) -> None:
    """Keep h of `last_rows_N` (int32, -1 for no new row) in `places_N` (int32, all different).

    What lies in each place then goes to `last_NH`; zeros for a place of -1, which is padding.
    """
    sessions, width = last_NH.shape
    _keep_last_states[(sessions,)](
        h_RH,
        last_rows_N,
        places_N,
        states_PH,
        last_NH,
        width,
        triton.next_power_of_2(width),
        num_warps=4,
    )


@triton.jit
@no_type_check
def _keep_last_states(
    h_RH, last_rows_N, places_N, states_PH, last_NH, width: tl.constexpr, tile: tl.constexpr
):
    session, at = tl.program_id(0).to(tl.int64), tl.arange(0, tile)
    row, place = tl.load(last_rows_N + session), tl.load(places_N + session)
    there = at < width
    state = states_PH + place.to(tl.int64) * width + at
    if row >= 0:
        x = tl.load(h_RH + row.to(tl.int64) * width + at, mask=there)
        tl.store(state, x, mask=there)
    else:
        x = tl.load(state, mask=there & (place >= 0), other=0.0)
    tl.store(last_NH + session * width + at, x, mask=there)
