"""Keys and values of one session's rows in an EAGLE-3 drafter, growing with the session.

Legend: C key-value heads, S slots, R rows, D head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.attention import KEY_BLOCK


class Eagle3Cache:
    """Slot s holds the row at position first_row + s, guessed or real."""

    def __init__(self, first_row: int, no_keys_CSD: torch.Tensor) -> None:
        """Begin without slots; `no_keys_CSD` tells sizes, dtype and device."""
        self.first_row = first_row
        self.keys_CSD = no_keys_CSD
        self.values_CSD = no_keys_CSD

    def reserve(self, num_slots: int) -> None:
        """Make room, at least doubling what there is."""
        num_there = self.keys_CSD.shape[1]
        if num_slots <= num_there:
            return
        added = -(-max(num_slots - num_there, num_there) // KEY_BLOCK) * KEY_BLOCK
        # Zeros, not empty: attention multiplies unseen slots by an exact 0, they must be finite.
        self.keys_CSD = F.pad(self.keys_CSD, (0, 0, 0, added))
        self.values_CSD = F.pad(self.values_CSD, (0, 0, 0, added))

    def write(self, slot: int, k_RCD: torch.Tensor, v_RCD: torch.Tensor) -> None:
        """Store rows in consecutive slots, over what was there."""
        rows = slice(slot, slot + k_RCD.shape[0])
        self.keys_CSD[:, rows] = k_RCD.transpose(0, 1)
        self.values_CSD[:, rows] = v_RCD.transpose(0, 1)
