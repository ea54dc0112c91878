"""A kernel as production launches it, and what its binary must have on every chip.

A spec is a step of the real wrapper on tensors of real sizes (`empty`: memory that is not touched
costs nothing), so types, alignments and options are those of production. A kernel compiled without
its alignments is another one: narrow loads, no asynchronous copies, more registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from tests.kernels.gpu.proofs.barriers import races
from tests.kernels.gpu.proofs.binary import Binary
from tests.kernels.gpu.proofs.fake_driver import SHARED_LIMIT, fake_driver

Step = Callable[[int], object]
ALL_ROWS = range(1, 65)


@dataclass(frozen=True)
class Needs:
    """What must be in a kernel's code."""

    tensor_cores: bool = False
    wide_loads: bool = True
    """16 bytes a thread, wherever rows are read."""
    async_copies: bool = False
    waits: bool = False
    """Barriers, wherever one thread may hold what another one wrote."""


@dataclass(frozen=True)
class CompileSpec:
    """A step, the kernels it launches, and what each of them needs.

    `prepare` makes the buffers, which stay where they are, and returns the step over the first rows
    of them, or whatever else its size counts. The last size is the one that is compiled for all
    chips; `variants` is how many binaries all sizes together may take.
    """

    name: str
    prepare: Callable[[], Step]
    kernels: Mapping[str, Needs]
    sizes: Sequence[int] = ALL_ROWS
    variants: int = 0
    """0: as many as there are kernels."""

    @property
    def most_variants(self) -> int:
        return self.variants or len(self.kernels)

    def compile(self, sm: int) -> list[Binary]:
        """Return the binaries that the step runs on a chip, in order of their names."""
        return compiled(lambda: self.prepare()(self.sizes[-1]), sm)


def compiled(launch: Callable[[], object], sm: int) -> list[Binary]:
    """Return the binaries of all kernels that are launched, in order of their names."""
    with fake_driver(sm) as driver:
        launch()
    return sorted(driver.binaries.values(), key=lambda binary: binary.name)


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return a tensor that is aligned as on a device, without touching its memory."""
    return torch.empty(shape, dtype=dtype)


def faults(binary: Binary, needs: Needs) -> list[str]:
    """Return what is wrong with a binary; nothing if it is fit for production."""
    limit = SHARED_LIMIT[binary.sm]
    found = {
        f"{binary.stack} bytes of stack a thread: registers are spilled": binary.stack,
        f"{binary.shared} of {limit} bytes of shared memory": binary.shared > limit,
        "no tensor cores": needs.tensor_cores and not binary.tensor_cores,
        "no loads of 16 bytes": needs.wide_loads and not binary.wide_loads,
        "no asynchronous copies": needs.async_copies and not binary.async_copies,
        "tensors that no barrier guards": needs.waits and races(binary.ptx),
    }
    return [fault for fault, is_there in found.items() if is_there]
