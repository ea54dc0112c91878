"""The device that a setting names."""

from __future__ import annotations

import torch


def device_of(setting: str) -> torch.device:
    """Return the device that a setting names. Raises ValueError for none, or one there is not."""
    found = torch.cuda.device_count()
    if setting in ("auto", "cpu"):
        return torch.device("cuda", 0) if setting == "auto" and found else torch.device("cpu")
    kind, _, number = setting.partition(":")
    if kind != "cuda" or not (number.isdecimal() or setting == kind):
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {setting!r}")
    if int(number or 0) >= found:
        raise ValueError(f"device is {setting!r}, but torch finds {found} CUDA devices")
    return torch.device("cuda", int(number or 0))
