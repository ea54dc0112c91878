"""Three taps of Kimi-K2.5 on their way to a drafter."""

import torch

from kernels.gpu import tap_gather
from tests.kernels.gpu.proofs.compile_spec import CompileSpec, Needs, Step, empty

TAPS, ROWS, HIDDEN = 3, 64, 7168


def _gather_taps() -> Step:
    taps_TRH, wire_MTH = empty(TAPS, ROWS, HIDDEN), empty(ROWS, TAPS, HIDDEN)
    rows_M = empty(ROWS, dtype=torch.int32)
    return lambda rows: tap_gather.gather_taps(taps_TRH, rows_M[:rows], wire_MTH[:rows])


def _gather_taps_fp8() -> Step:
    taps_TRH = empty(TAPS, ROWS, HIDDEN)
    wire_MTH = empty(ROWS, TAPS, HIDDEN, dtype=torch.float8_e4m3fn)
    rows_M, scales_MT = empty(ROWS, dtype=torch.int32), empty(ROWS, TAPS, dtype=torch.float32)
    return lambda rows: tap_gather.gather_taps_fp8(
        taps_TRH, rows_M[:rows], wire_MTH[:rows], scales_MT[:rows]
    )


SPECS = [
    CompileSpec("taps as bfloat16", _gather_taps, {"_gather_taps": Needs()}),
    CompileSpec("taps as fp8", _gather_taps_fp8, {"_gather_taps": Needs()}),
]
