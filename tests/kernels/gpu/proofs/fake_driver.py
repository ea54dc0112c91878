"""A driver without a device: real wrappers run on CPU tensors, kernels are compiled, none is run.

What a wrapper launches is noted as a captured graph would keep it: the kernel, its grid, the
addresses and scalars it was given, and which compiled variant takes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime import JITFunction, driver

from tests.kernels.gpu.proofs.binary import Binary

CHIPS = (90, 100, 120)
"""H100 and H200, B200, RTX PRO 6000."""
SHARED_LIMIT = {90: 232448, 100: 232448, 120: 101376}
"""Bytes of shared memory a block can have. Triton raises OutOfResources for more."""
_MAX_GRID = (2**31 - 1, 2**16 - 1, 2**16 - 1)


@dataclass(frozen=True)
class Launch:
    """A launch as a graph keeps it. Tensors are their addresses."""

    name: str
    grid: tuple[int, int, int]
    args: tuple[Any, ...]
    variant: str
    """The hash of the binary: two launches of one variant compile once."""


class FakeDriver(DriverBase):
    """Compiles for one chip and notes launches, in order."""

    def __init__(self, sm: int) -> None:
        super().__init__()
        self.sm = sm
        self.launches: list[Launch] = []
        self.binaries: dict[str, Binary] = {}
        self.launcher_cls = _Launcher
        self.utils = self

    @property
    def variants(self) -> set[str]:
        """What was compiled for all launches so far."""
        return {launch.variant for launch in self.launches}

    def note(self, kernel: Any) -> None:
        """Keep a kernel that Triton compiled."""
        code, about = kernel.asm, kernel.metadata
        self.binaries[kernel.hash] = Binary(
            kernel.name, self.sm, code["ptx"], code["cubin"], about.shared, about.num_warps
        )

    def get_device_properties(self, device: int) -> dict[str, int]:
        shared = SHARED_LIMIT[self.sm]
        return {"max_shared_mem": shared, "multiprocessor_count": 132, "warpSize": 32}

    def load_binary(
        self, name: str, cubin: bytes, shared: int, device: int
    ) -> tuple[None, None, int, int, int]:
        """Return module, function, registers, spills and the most threads of a block."""
        return None, None, 0, 0, 1024

    @classmethod
    def is_active(cls) -> bool:
        return True

    def map_python_to_cpp_type(self, ty: str) -> str:
        return ty

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.sm, 32)

    def get_current_device(self) -> int:
        """The chip is the device, so that what Triton keeps of two chips stays apart."""
        return self.sm

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Any:
        raise NotImplementedError("nothing runs here, so nothing can be timed")


class _Launcher:
    """Called by Triton in place of the launch. It outlives the driver it was made under."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self._metadata = metadata

    def __call__(self, x: int, y: int, z: int, *rest: Any) -> None:
        """`rest` is the stream, the function, two kinds of metadata, two hooks, the arguments."""
        grid, about = (x, y, z), self._metadata
        in_range = all(0 < n <= most for n, most in zip(grid, _MAX_GRID, strict=True))
        assert in_range, f"{about.name} cannot be launched on a grid of {grid}"
        driver.active.launches.append(Launch(about.name, grid, _as_kept(rest[6:]), about.hash))


def _as_kept(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_as_kept(arg) if isinstance(arg, tuple) else _address_or(arg) for arg in args)


def _address_or(arg: Any) -> Any:
    return arg.data_ptr() if hasattr(arg, "data_ptr") else arg


@contextmanager
def fake_driver(sm: int = 90) -> Iterator[FakeDriver]:
    """Launch on a fake driver of one chip."""
    before, run, fake = driver._active, JITFunction.run, FakeDriver(sm)

    def run_and_note(function: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = run(function, *args, **kwargs)
        fake.note(kernel)
        return kernel

    driver.set_active(fake)
    JITFunction.run = run_and_note
    try:
        yield fake
    finally:
        JITFunction.run = run
        driver._active = before
