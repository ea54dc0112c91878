"""Where drafters run: on the CPU, or on a GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch


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
        if text == "auto":
            found = "cuda:0" if torch.cuda.is_available() else "cpu"
            return cls(torch.device(found), graphs, may_fall_back=True)
        if text == "cpu":
            return ON_CPU
        if not (cuda := re.fullmatch(r"cuda(?::(\d{1,3}))?", text)):
            raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {text!r}")
        index, count = int(cuda[1] or 0), torch.cuda.device_count()
        if not torch.cuda.is_available() or index >= count:
            found = f"{count} of them" if count else "no CUDA device"
            raise ValueError(f"device is {text!r}, but torch finds {found}")
        return cls(torch.device("cuda", index), graphs)

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"


ON_CPU = Placement(torch.device("cpu"))
