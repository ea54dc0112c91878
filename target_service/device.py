"""What the settings of a target may be on a GPU."""

from __future__ import annotations

import torch

from target_service.config import TargetConfig
from target_service.models.llama import LlamaConfig
from target_service.models.target_model import ModelConfig


def check_settings(config: TargetConfig, dtype: torch.dtype, model: ModelConfig) -> None:
    """Raise ValueError for settings, or a model of some dtype, that a GPU cannot serve."""
    refusals = {
        "latent attention and experts have no step yet": not isinstance(model, LlamaConfig),
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
