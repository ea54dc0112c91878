"""Tensors of all types side by side in one memory of bytes, so that one copy takes them all.

The host writes and reads views of a memory that is pinned; kernels have views of its twin.

Legend: B bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch

_ALIGNMENT = 16
"""Bytes that a thread loads at once."""


class Piece(NamedTuple):
    """A tensor of a memory."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


Pieces = Mapping[str, Piece]


class Layout:
    """Where pieces lie in a memory of bytes: side by side in their order, each aligned."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._offsets: dict[str, int] = {}
        self.num_bytes = 0
        for name, piece in pieces.items():
            self._offsets[name] = self.num_bytes
            self.num_bytes += -(-piece.num_bytes // _ALIGNMENT) * _ALIGNMENT

    def views(self, memory_B: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the pieces of a memory, by name."""
        return {
            name: memory_B[begin : begin + piece.num_bytes].view(piece.dtype).view(piece.shape)
            for name, piece in self._pieces.items()
            for begin in (self._offsets[name],)
        }

    def bytes_with(self, name: str, count: int) -> int:
        """Return how many bytes lie before a piece, and in the first rows of it."""
        dtype, (_, *row) = self._pieces[name]
        return self._offsets[name] + count * dtype.itemsize * math.prod(row)


class TwinMemory:
    """So many bytes on the host, where the device can reach them, and as many on the device."""

    def __init__(
        self, num_bytes: int, device: torch.device, host_B: torch.Tensor | None = None
    ) -> None:
        """`host_B` is memory on the host that is there already, and that a device can reach."""
        if host_B is None:
            pinned = device.type == "cuda"
            host_B = torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=pinned)
        self.host_B = host_B
        self.device_B = torch.zeros(num_bytes, dtype=torch.uint8, device=device)

    def to_device(self, num_bytes: int) -> None:
        """Copy the first bytes, in the order of the stream's work."""
        self.device_B[:num_bytes].copy_(self.host_B[:num_bytes], non_blocking=True)

    def to_host(self, num_bytes: int) -> None:
        """Copy the first bytes back. They are there when the stream has come so far."""
        self.host_B[:num_bytes].copy_(self.device_B[:num_bytes], non_blocking=True)
