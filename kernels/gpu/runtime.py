"""Where kernels for GPUs run: on a CUDA device, or, for tests, on a CPU by Triton's interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import torch
import triton

from kernels.gpu.attention_shape import Tiling

_INTERPRETED = Tiling(lines=16, warps=4, stages=2, programs=4)
"""Where nothing runs at the same time, large tiles only take time."""


def check_runnable(device: torch.device) -> None:
    """Raise ValueError where kernels for GPUs cannot run."""
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ValueError(f"device is {str(device)!r}, but torch finds no CUDA device")
    elif not triton.knobs.runtime.interpret:
        raise ValueError(
            f"device is {str(device)!r}: kernels for GPUs run there only under "
            "TRITON_INTERPRET=1, which is for tests"
        )


def tiling_of(tilings: Mapping[int, Tiling], device: torch.device) -> Tiling:
    """Return how the chip is used. Raises ValueError for a chip that no tiling was made for."""
    if device.type != "cuda":
        return _INTERPRETED
    major, minor = torch.cuda.get_device_capability(device)
    if major not in tilings:
        known = ", ".join(f"{known}.x" for known in sorted(tilings))
        raise ValueError(f"compute capability is {major}.{minor}; kernels are tiled for {known}")
    return tilings[major]


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Launch on this device within it: Triton takes the thread's current one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
