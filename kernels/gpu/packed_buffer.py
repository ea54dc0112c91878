"""Pieces on the host and on a device that always travel together, in the order asked for."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernels.gpu.packed_memory import Layout, Piece, TwinMemory


class PackedBuffer:
    """All zeros at first. `memory` is the device's side of all pieces, in bytes."""

    def __init__(self, pieces: Sequence[Piece], device: torch.device) -> None:
        layout = Layout({str(number): piece for number, piece in enumerate(pieces)})
        self._twins = TwinMemory(layout.num_bytes, device)
        self.memory = self._twins.device_B
        self.on_host, self.on_device = (
            tuple(layout.views(side_B).values()) for side_B in (self._twins.host_B, self.memory)
        )

    def upload(self) -> None:
        """Send all pieces. What is launched next sees them; the host may not write before that."""
        self._twins.to_device(len(self.memory))

    def download(self) -> None:
        """Wait for what was launched, and fetch all pieces."""
        self._twins.host_B.copy_(self.memory)
