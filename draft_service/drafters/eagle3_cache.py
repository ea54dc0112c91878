"""Keys and values of one session's rows in an EAGLE-3 drafter, growing with the session.

Legend: L = 1 layer, C key-value heads, S slots, D head size, B blocks of K slots (see kv_slots).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.kv_slots import KEY_BLOCK, new_slots, whole_blocks


class Eagle3Cache:
    """Slot s holds the row at position first_row + s, guessed or real."""

    def __init__(self, first_row: int, num_heads: int, head_dim: int, like: torch.Tensor) -> None:
        """Begin without slots, in the dtype and on the device of `like`."""
        self.first_row = first_row
        self.keys_LCSD, self.values_LCBDK = new_slots((1, num_heads), 0, head_dim, like)

    def reserve(self, num_slots: int) -> None:
        """Make room, at least doubling what there is."""
        num_there = self.keys_LCSD.shape[2]
        if num_slots <= num_there:
            return
        added = whole_blocks(max(num_slots - num_there, num_there))
        # Zeros, not empty: attention multiplies unseen slots by an exact 0, they must be finite.
        self.keys_LCSD = F.pad(self.keys_LCSD, (0, 0, 0, added))
        self.values_LCBDK = F.pad(self.values_LCBDK, (0, 0, 0, 0, 0, added // KEY_BLOCK))
