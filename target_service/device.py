"""What the settings of a target may be on a GPU."""

from __future__ import annotations

import torch

from target_service.config import TargetConfig


def check_settings(config: TargetConfig, dtype: torch.dtype) -> None:
    """Raise ValueError for settings, or a model of some dtype, that a GPU cannot serve."""
    refusals = {
        f"weights is {config.weights!r}: its kernels take bfloat16 weights, and int4 only of "
        "experts that a checkpoint keeps so; --weights bf16 leaves both as they are": (
            config.weights in ("int8", "int4")
        ),
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
