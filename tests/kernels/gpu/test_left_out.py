"""Says in a line what this process cannot run."""

import pytest

from tests.kernels.gpu.conftest import HALVES, LEFT_OUT


@pytest.mark.parametrize("half", LEFT_OUT)
def test_what_is_left_out(half):
    pytest.skip(f"tests/kernels/gpu/{half} {HALVES[half]}, and Triton")
