"""The device that the target runs on, and what the settings may be there."""

from __future__ import annotations

import torch

from target_service.config import TargetConfig


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


def check_settings(config: TargetConfig, dtype: torch.dtype) -> None:
    """Raise ValueError for settings that a GPU cannot serve a model of some dtype with."""
    refusals = {
        f"weights is {config.weights!r}: its kernels here take bfloat16 weights; "
        "--weights bf16 is what they are": config.weights in ("int8", "int4"),
        f"kernels is {config.kernels!r}, which are for CPUs": config.kernels != "auto",
        f"the model is {str(dtype).removeprefix('torch.')}: its kernels take bfloat16; "
        "--weights bf16 converts it": dtype != torch.bfloat16,
        "allow_forced_acceptance is set: what a step accepts is decided on the device": (
            config.allow_forced_acceptance
        ),
    }
    for reason, holds in refusals.items():
        if holds:
            raise ValueError(f"on a GPU {reason}; --device cpu serves it on the CPU")
