"""What a chip would load: registers, spills, shared memory, instructions of a kernel."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import triton

_CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")
_TENSOR_CORES = re.compile(r"wgmma\.mma_async|tcgen05\.mma|mma\.sync")
_WIDE_LOADS = re.compile(r"ld\.global\S*\.(?:v4\.[bu]32|v2\.[bu]64)|cp\.async\.cg.*\b(?:0x10|16)\b")
_ASYNC_COPIES = re.compile(r"cp\.async\.(?:c[ag]|bulk)\S*\.global")


@dataclass(frozen=True)
class Binary:
    """One variant of a kernel for one chip."""

    name: str
    sm: int
    ptx: str
    cubin: bytes
    shared: int
    """Bytes of shared memory a block."""
    num_warps: int

    @cached_property
    def registers(self) -> int:
        """Registers a thread."""
        return self._usage[0]

    @cached_property
    def stack(self) -> int:
        """Bytes a thread keeps in memory for want of registers."""
        return self._usage[1]

    @property
    def tensor_cores(self) -> int:
        """How many instructions run on tensor cores."""
        return len(_TENSOR_CORES.findall(self.ptx))

    @property
    def wide_loads(self) -> int:
        """How many loads from global memory take 16 bytes a thread."""
        return len(_WIDE_LOADS.findall(self.ptx))

    @property
    def async_copies(self) -> int:
        """How many copies from global to shared memory pass no register."""
        return len(_ASYNC_COPIES.findall(self.ptx))

    @cached_property
    def _usage(self) -> tuple[int, int]:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self.cubin)
            file.flush()
            command = [_CUOBJDUMP, "--dump-resource-usage", file.name]
            ran = subprocess.run(command, capture_output=True, text=True, check=True)
        found = _USAGE.search(ran.stdout)
        assert found is not None, f"cuobjdump says nothing about {self.name}"
        return int(found[1]), int(found[2])
