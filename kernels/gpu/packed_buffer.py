"""Many small tensors in one piece of memory, so that they reach a GPU, or leave it, in one copy.

The host writes and reads views of a piece that is pinned; kernels have views of its twin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

# Kernels load 16 bytes at a time from addresses that are known to be multiples of it.
_ALIGNMENT = 16


class Piece(NamedTuple):
    """A tensor of the buffer."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


class PackedBuffer:
    """Pieces on the host and on a device, in the order they were asked for. All zeros at first.

    `memory` is the device's side of all of them, in bytes.
    """

    def __init__(self, pieces: Sequence[Piece], device: torch.device) -> None:
        spans = [-(-piece.num_bytes // _ALIGNMENT) * _ALIGNMENT for piece in pieces]
        firsts = [sum(spans[:index]) for index in range(len(spans))]
        self._host = torch.zeros(sum(spans), dtype=torch.uint8, pin_memory=device.type == "cuda")
        self.memory = torch.zeros(sum(spans), dtype=torch.uint8, device=device)
        self.on_host, self.on_device = (
            tuple(_view(memory, at, piece) for at, piece in zip(firsts, pieces, strict=True))
            for memory in (self._host, self.memory)
        )

    def upload(self) -> None:
        """Send all pieces. What is launched next sees them; the host may not write before that."""
        self.memory.copy_(self._host, non_blocking=True)

    def download(self) -> None:
        """Wait for what was launched, and fetch all pieces."""
        self._host.copy_(self.memory)


def _view(memory: torch.Tensor, first: int, piece: Piece) -> torch.Tensor:
    return memory[first : first + piece.num_bytes].view(piece.dtype).view(piece.shape)
