"""`python -m`, in the place of `target_service.rank`: a rank whose kernels are interpreted.

Where SLIPSTREAM_TEST_BITS names a file, it keeps there what came of each step.
"""

import os
import sys
from pathlib import Path

import numpy as np

from target_service import rank
from target_service.team import RankJob
from tests.kernels.gpu.proofs.interpreted_floats import install
from tests.target_service.gpu.step_bits import BITS, keep_bits

MODULE = "tests.target_service.gpu.interpreted_rank"

if __name__ == "__main__":
    install()
    np.seterr(all="ignore")
    if BITS in os.environ:
        keep_bits(Path(os.environ[BITS]))
    rank.main(RankJob.model_validate_json(sys.argv[1]))
