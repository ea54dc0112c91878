"""Slots of rows, for 32 sessions of up to 32,768 tokens."""

import torch

from kernels.gpu import row_slots
from tests.kernels.gpu.proofs.compile_spec import CompileSpec, Needs, Step, empty

ROWS, SESSIONS, PAGES_OF_SESSION = 64, 32, 512


def integers(*shape: int) -> torch.Tensor:
    return empty(*shape, dtype=torch.int32)


def _find_slots() -> Step:
    session_R, slots_R = integers(ROWS), empty(ROWS, dtype=torch.int64)
    first_row_N1, prefix_len_N = integers(SESSIONS + 1), integers(SESSIONS)
    pages_NX = integers(SESSIONS, PAGES_OF_SESSION)
    return lambda rows: row_slots.find_slots(
        session_R[:rows], first_row_N1, prefix_len_N, pages_NX, slots_R[:rows]
    )


SPECS = [CompileSpec("slots of rows", _find_slots, {"_find_slots": Needs(wide_loads=False)})]
