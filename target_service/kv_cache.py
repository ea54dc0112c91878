"""Keys, values and taps of all sessions' tokens, in pages.

Taps are kept with the pages, so that a session that begins like another can have them, too, without
computing them again.

Legend: S slots of all pages, X tapped width (layers * hidden), B its bytes, N slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from kernels.kv_pages import PAGE_LEN, new_pages, new_shared_pages, new_zeros


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
        self._taps_SX = new_zeros((num_pages * PAGE_LEN, tap_width), like.cpu())
        # Rows are stored through numpy, which takes a fifth of the time of an assignment in torch.
        self._bytes_SB = self._taps_SX.view(torch.uint8).numpy()

    def pages(self, pages: Sequence[int]) -> torch.Tensor:
        """Return page numbers where the kernels want them."""
        return torch.tensor(pages, device=self.kv.keys_PLCKD.device)

    def move(self, moves: Sequence[tuple[int, int]]) -> None:
        """Move slots, each from the first to the second, as if all at once."""
        if moves:
            device = self.kv.keys_PLCKD.device
            self.kv.move(*torch.tensor(moves, device=device).unbind(1))

    def store_taps(self, slots: Sequence[int], taps_NX: torch.Tensor) -> None:
        """Keep the taps of committed tokens in their slots."""
        if taps_NX.shape[1]:
            taps_NX = taps_NX.to(self._taps_SX).contiguous()
            self._bytes_SB[slots] = taps_NX.view(torch.uint8).numpy()

    def taps(self, slots: Sequence[int]) -> torch.Tensor:
        """Return the taps that lie in slots, [N, X]; a copy."""
        return self._taps_SX[torch.tensor(slots)]
