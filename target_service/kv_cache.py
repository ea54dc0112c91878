"""Keys and values of sessions: a pool that is promised before it is used, and a cache a session.

Legend: L layers, C key-value heads, S slots, D head size, B blocks of K slots (see kv_slots).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels import tree
from kernels.kv_slots import move_slots, new_slots, whole_blocks


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
        like = torch.empty(0, dtype=shape.dtype, device=shape.device)
        outer = (shape.num_layers, shape.num_kv_heads)
        self.keys_LCSD, self.values_LCBDK = new_slots(outer, num_slots, shape.head_dim, like)
        self.num_slots = num_slots

    def compact(self, slot: int, path: list[int]) -> None:
        """Move the rows of an accepted path to the slots after `slot`, where the root lies.

        Node i lies in slot + i. The nodes of a chain lie where they belong already.
        """
        if not tree.is_chain_prefix(path):
            source = [slot + node for node in path]
            move_slots(self.keys_LCSD, self.values_LCBDK, source, slot + 1)


class KvPool:
    """The slots this service may use at once. A session's share is promised when it opens."""

    def __init__(self, shape: KvShape, num_tokens: int) -> None:
        self._shape = shape
        self.num_tokens = num_tokens
        self.num_reserved = 0

    def open(self, num_tokens: int) -> KvCache:
        """Return a cache for so many tokens. Raises KvPoolFullError if they are not free."""
        slots = whole_blocks(num_tokens)
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
