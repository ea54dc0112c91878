"""`python -m`, in the place of `target_service`: ranks on the CPU, with interpreted kernels.

All else is the service's own.
"""

from functools import partial

import numpy as np
import torch

from kernels.native import Selection
from protos import serving
from target_service import __main__ as service
from target_service import ranks
from target_service.buckets import Bucket, Buckets
from tests.kernels.gpu.proofs.interpreted_floats import install
from tests.target_service.gpu.interpreted_rank import MODULE

CPU = torch.device("cpu")

if __name__ == "__main__":
    install()
    np.seterr(all="ignore")
    service.devices_of = lambda _, count: (CPU,) * count
    service.kernels_on = lambda *_: Selection("triton")
    service.new_engine = service._new_device_engine
    ranks.Ranks = partial(ranks.Ranks, module=MODULE)  # type: ignore[misc]
    # All of them would take an interpreter minutes.
    Buckets.usual = lambda _: iter([Bucket(1, 1, 1)])  # type: ignore[method-assign]
    serving.run(service.main)
