"""Last hidden states: new ones are kept, kept ones are found again.

Legend: R rows, N sessions, P places, H hidden.
"""

import pytest
import torch

from kernels.gpu.last_states import keep_last_states
from tests.kernels.gpu.proofs.memory_guard import launch_guarded


@pytest.mark.parametrize("width", [32, 33])
def test_sessions_go_on_from_their_last_row_or_from_what_was_kept(width):
    """The third session has no new rows; the last two are padding."""
    h_RH, states_PH = torch.randn(7, width).bfloat16(), torch.randn(6, width).bfloat16()
    rows_N, places_N = torch.tensor([[2, 6, -1, -1, -1], [4, 0, 3, -1, -1]], dtype=torch.int32)
    last_NH = torch.full((5, width), torch.nan, dtype=torch.bfloat16)
    kept_PH = states_PH.clone()
    kept_PH[[4, 0]] = h_RH[[2, 6]]

    launch_guarded(
        lambda: keep_last_states(h_RH, rows_N, places_N, states_PH, last_NH), states_PH, last_NH
    )

    assert torch.equal(states_PH, kept_PH)
    assert torch.equal(last_NH[:3], kept_PH[[4, 0, 3]])
    assert not last_NH[3:].any()
