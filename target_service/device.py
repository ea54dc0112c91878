"""The devices of a target, and what its settings may be on GPUs."""

from __future__ import annotations

import torch

from kernels.device import device_of
from target_service.config import TargetConfig
from target_service.models.target_model import TargetModel
from target_service.tensor_parallel import Part, slice_model
from target_service.weights import Weights


def devices_of(setting: str, count: int) -> tuple[torch.device, ...]:
    """Return the devices from the named one on.

    Raises ValueError for a setting that names none, and if there are not so many GPUs.
    """
    first, found = device_of(setting), torch.cuda.device_count()
    if count == 1:
        return (first,)
    if first.type != "cuda" or first.index + count > found:
        raise ValueError(
            f"tensor_parallel is {count} and device {setting!r}, but torch finds {found} CUDA "
            "devices; it shares layers between GPUs, from the named one on"
        )
    return tuple(torch.device("cuda", first.index + rank) for rank in range(count))


def devices_to_text(first: torch.device, count: int) -> str:
    """Return as in "cuda:0", or "cuda:0-7"."""
    return str(first) if count == 1 else f"{first}-{(first.index or 0) + count - 1}"


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


def check_parallel(config: TargetConfig, model: TargetModel) -> None:
    """Raise ValueError for a model that cannot be shared by as many devices as are configured."""
    count = config.tensor_parallel
    if count == 1:
        return
    stored = Weights(config.model)["model.embed_tokens.weight"].dtype
    if stored != model.dtype:
        raise ValueError(
            f"tensor_parallel is {count}, and every rank would convert all of a {stored} "
            f"checkpoint to {model.dtype}; take one that is stored in it"
        )
    slice_model(model, Part(0, count))
