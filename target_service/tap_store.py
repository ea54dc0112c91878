"""The taps of all sessions' tokens, in the host's memory, slot by slot as their keys lie in pages.

A session that begins like another can so have its taps, too, without computing them again.

Legend: S slots of all pages, X tapped width (layers * hidden), B its bytes, N slots.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.kv_pages import PAGE_LEN, new_zeros


class TapStore:
    """Room for the taps of a fixed number of pages. It takes memory once it is written to."""

    def __init__(self, num_pages: int, tap_width: int, dtype: torch.dtype) -> None:
        """Raises OSError if there is not so much memory."""
        like = torch.empty(0, dtype=dtype)
        self._taps_SX = new_zeros((num_pages * PAGE_LEN, tap_width), like)
        # Rows are stored through numpy, which takes a fifth of the time of an assignment in torch.
        self._bytes_SB = self._taps_SX.view(torch.uint8).numpy()

    def store(self, slots: Sequence[int], taps_NX: torch.Tensor) -> None:
        """Keep the taps of committed tokens in their slots."""
        if taps_NX.shape[1]:
            taps_NX = taps_NX.to(self._taps_SX).contiguous()
            self._bytes_SB[slots] = taps_NX.view(torch.uint8).numpy()

    def of(self, slots: Sequence[int]) -> torch.Tensor:
        """Return the taps that lie in slots, [N, X]; a copy."""
        return self._taps_SX[torch.tensor(slots)]
