"""The interpreter, with floats that are floats, and that overflow as silently as on a GPU."""

from collections.abc import Iterator

import numpy as np
import pytest

from tests.kernels.gpu.conftest import INTERPRETS
from tests.kernels.gpu.proofs.interpreted_floats import install

if not INTERPRETS:
    raise pytest.UsageError("these tests need TRITON_INTERPRET=1")
install()


@pytest.fixture(autouse=True)
def _silent_floats() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield
