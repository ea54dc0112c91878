"""Keys, values and taps of all sessions' tokens, in pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.kv_pages import new_pages, new_shared_pages
from target_service.tap_store import TapStore


@dataclass(frozen=True)
class KvShape:
    """What one slot holds."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device
    keys_are_values: bool = False
    """Then they are kept once."""


class KvCache:
    """A fixed number of pages, and room for their tokens' taps in the host's memory."""

    def __init__(self, shape: KvShape, num_pages: int, tap_width: int) -> None:
        like = torch.empty(0, dtype=shape.dtype, device=shape.device)
        outer = (num_pages, shape.num_layers, shape.num_kv_heads)
        new = new_shared_pages if shape.keys_are_values else new_pages
        self.kv = new(*outer, shape.head_dim, like)
        self.num_pages = num_pages
        self.taps = TapStore(num_pages, tap_width, shape.dtype)

    def pages(self, pages: Sequence[int]) -> torch.Tensor:
        """Return page numbers where the kernels want them."""
        return torch.tensor(pages, device=self.kv.keys_PLCKD.device)

    def move(self, moves: Sequence[tuple[int, int]]) -> None:
        """Move slots, each from the first to the second, as if all at once."""
        if moves:
            device = self.kv.keys_PLCKD.device
            self.kv.move(*torch.tensor(moves, device=device).unbind(1))
