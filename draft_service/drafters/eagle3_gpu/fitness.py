"""Whether a drafter is one that runs on a GPU. Others run on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from draft_service.drafters.eagle3_config import Eagle3Config
from draft_service.weights import open_drafter, read_config
from kernels.gpu.paged_attention import PAGED_TILINGS, check_head_dim
from kernels.gpu.runtime import check_runnable, tiling_of


class UnfitForGpuError(ValueError):
    """A drafter that CPUs run, and this GPU does not."""


def check_fit(drafter_dir: Path, device: torch.device) -> None:
    """Raise UnfitForGpuError for a checkpoint, or a chip, that kernels are not made for.

    Raises ValueError where there is no GPU, or for a checkpoint that is none.
    """
    config = Eagle3Config.for_any_depth(read_config(drafter_dir))
    dtype = open_drafter(drafter_dir)["fc.weight"].dtype
    if config.latent is not None:
        raise UnfitForGpuError("drafters with latent attention (MLA) do not run on a GPU yet")
    with _unfit():
        check_head_dim(config.head_dim)
    if dtype != torch.bfloat16:
        raise UnfitForGpuError(f"fc.weight has dtype {dtype}, a GPU runs torch.bfloat16 only")
    check_runnable(device)
    with _unfit():
        tiling_of(PAGED_TILINGS, device)


@contextmanager
def _unfit() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise UnfitForGpuError(str(error)) from None
