"""Pages of keys and values as kernels for GPUs read them: values slot by slot, as keys lie.

Legend: P pages, L layers, C key-value heads, S = 64 slots of a page, D head size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.kv_pages import PAGE_LEN


class Pages(NamedTuple):
    """The keys and values of all layers, page after page. Slots nobody wrote may hold anything."""

    keys_PLCSD: torch.Tensor
    values_PLCSD: torch.Tensor | None
    """None if keys are their own values."""

    @property
    def num_pages(self) -> int:
        return len(self.keys_PLCSD)


def new_pages(
    num_pages: int, num_layers: int, num_heads: int, head_dim: int, device: torch.device
) -> Pages:
    """Return pages of zeros in bfloat16."""
    shape = (2, num_pages, num_layers, num_heads, PAGE_LEN, head_dim)
    return Pages(*torch.zeros(shape, dtype=torch.bfloat16, device=device))


def new_latent_pages(num_pages: int, num_layers: int, head_dim: int, device: torch.device) -> Pages:
    """Return pages of zeros for the one key of latent attention, which is its value."""
    shape = (num_pages, num_layers, 1, PAGE_LEN, head_dim)
    return Pages(torch.zeros(shape, dtype=torch.bfloat16, device=device), None)
