"""Keys and values of sessions: a pool that is promised before it is used, and a cache a session.

Legend: L layers, C key-value heads, S slots, R rows, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.attention import KEY_BLOCK


class KvPoolFullError(Exception):
    """The pool cannot promise so many slots now. It may after other sessions have closed."""


@dataclass(frozen=True)
class KvShape:
    """What one slot holds."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device


class KvCache:
    """One session's keys and values. Slot i holds the token at position i, once it is committed."""

    def __init__(self, shape: KvShape, num_slots: int) -> None:
        sizes = (shape.num_layers, shape.num_kv_heads, num_slots, shape.head_dim)
        # Zeros, not empty: attention multiplies unseen slots by an exact 0, so they must be finite.
        self.keys_LCSD = torch.zeros(sizes, dtype=shape.dtype, device=shape.device)
        self.values_LCSD = torch.zeros(sizes, dtype=shape.dtype, device=shape.device)
        self.num_slots = num_slots

    def write(self, layer: int, slot: int, k_RCD: torch.Tensor, v_RCD: torch.Tensor) -> None:
        """Store the rows of a forward in consecutive slots."""
        rows = slice(slot, slot + k_RCD.shape[0])
        self.keys_LCSD[layer, :, rows] = k_RCD.transpose(0, 1)
        self.values_LCSD[layer, :, rows] = v_RCD.transpose(0, 1)

    def compact(self, slot: int, path: list[int]) -> None:
        """Move the rows of an accepted path to the slots after `slot`, where the root lies.

        Node i lies in slot + i. The nodes of a chain lie where they belong already.
        """
        if path == list(range(1, len(path) + 1)):
            return
        source = torch.tensor(path, device=self.keys_LCSD.device) + slot
        target = slice(slot + 1, slot + 1 + len(path))
        self.keys_LCSD[:, :, target] = self.keys_LCSD[:, :, source]
        self.values_LCSD[:, :, target] = self.values_LCSD[:, :, source]


class KvPool:
    """The slots this service may use at once. A session's share is promised when it opens."""

    def __init__(self, shape: KvShape, num_tokens: int) -> None:
        self._shape = shape
        self.num_tokens = num_tokens
        self.num_reserved = 0

    def open(self, num_tokens: int) -> KvCache:
        """Return a cache for so many tokens. Raises KvPoolFullError if they are not free."""
        slots = -(-num_tokens // KEY_BLOCK) * KEY_BLOCK
        if self.num_reserved + slots > self.num_tokens:
            free = self.num_tokens - self.num_reserved
            raise KvPoolFullError(
                f"{slots} KV slots are needed, {free} of {self.num_tokens} are free"
            )
        self.num_reserved += slots
        return KvCache(self._shape, slots)

    def close(self, cache: KvCache) -> None:
        """Give a cache's slots back."""
        self.num_reserved -= cache.num_slots
        assert self.num_reserved >= 0, "a cache was closed twice"
