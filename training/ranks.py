"""Which of several training processes this one is. Under `torchrun` there are several."""

from __future__ import annotations

import torch.distributed as dist


def world_size() -> int:
    """Return how many processes train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Return which of them this one is; 0 is the one that writes."""
    return dist.get_rank() if dist.is_initialized() else 0
