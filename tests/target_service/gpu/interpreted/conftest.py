"""The interpreter as for the kernels: floats that are floats, and that overflow silently."""

from tests.kernels.gpu.interpreted.conftest import _silent_floats

__all__ = ["_silent_floats"]
