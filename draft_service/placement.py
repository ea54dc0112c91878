"""Where drafters run: on the CPU, or on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.device import device_of

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Placement:
    """A device, and how it is used."""

    device: torch.device
    graphs: bool = True
    """Whether steps on a GPU are captured as CUDA graphs, or launched one by one."""
    may_fall_back: bool = False
    """Whether drafters that no GPU runs are run on the CPU; otherwise they are refused."""

    @classmethod
    def parse(cls, text: str, *, graphs: bool) -> Placement:
        """Read `auto`, `cpu`, `cuda` or `cuda:N`. Raises ValueError if there is no such device."""
        device = device_of(text)
        return cls(device, graphs, may_fall_back=text == "auto") if device != _CPU else ON_CPU

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"


ON_CPU = Placement(_CPU)
