"""Where the keys and values of many sessions lie: in pages of 64 slots, in no order.

A slot is a position of a session's text, or a row that may become one. A session knows its pages in
the order of its text; slot s lies in page s // 64 of them. A page is what attention reduces over at
a time, so it is whole in memory, and two sessions with the same beginning can share it. Values lie
in pairs of slots, element by element side by side: a product over keys takes two at a time, and yet
a row's values lie on few cache lines.

Legend: P pages, L layers, C key-value heads, K = 64 slots of a page, J = 32 pairs of them, D head
size, B pages of one session, S = 64 B slots of it, R rows, T positions of a tail, N slots.
"""

from __future__ import annotations

import math
import mmap
from typing import NamedTuple

import torch

PAGE_LEN = 64


def num_pages_for(num_slots: int) -> int:
    """Return how many pages hold so many slots."""
    return -(-num_slots // PAGE_LEN)


def whole_pages(num_slots: int) -> int:
    """Return the number of slots rounded up to whole pages."""
    return num_pages_for(num_slots) * PAGE_LEN


class KvPages(NamedTuple):
    """The keys and values of all layers, page after page."""

    keys_PLCKD: torch.Tensor
    values_PLCJD2: torch.Tensor
    """Of keys that are their own values, another view of the keys."""

    @property
    def num_pages(self) -> int:
        return len(self.keys_PLCKD)

    def of_session(self, layer: int, pages_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return one layer of a session's keys, [C, S, D], and values, [C, B, J, D, 2]; copies."""
        keys_CSD = self.keys_PLCKD[pages_B, layer].transpose(0, 1).flatten(1, 2)
        return keys_CSD, self.values_PLCJD2[pages_B, layer].transpose(0, 1)

    def write(
        self, layer: int, slots_R: torch.Tensor, k_RCD: torch.Tensor, v_RCD: torch.Tensor
    ) -> None:
        """Store rows in slots of the pool, over what was there.

        Whoever writes a page's first slot empties the page: what another session left there is
        multiplied by an exact 0, and would be felt if it were not finite.
        """
        pages_R, within_R = slots_R // PAGE_LEN, slots_R % PAGE_LEN
        begun = pages_R[within_R == 0]
        for part in self:
            part[begun, layer] = 0
        self.keys_PLCKD[pages_R, layer, :, within_R] = k_RCD
        self.values_PLCJD2[pages_R, layer, :, within_R // 2, :, within_R % 2] = v_RCD

    def move(self, source_N: torch.Tensor, target_N: torch.Tensor) -> None:
        """Move slots of the pool to others, in all layers. All are read before one is written."""
        source, target = ((slots // PAGE_LEN, slots % PAGE_LEN) for slots in (source_N, target_N))
        keys_PLCKD, values_PLCJD2 = self
        k_NLCD = keys_PLCKD[source[0], :, :, source[1]]
        v_NLCD = values_PLCJD2[source[0], :, :, source[1] // 2, :, source[1] % 2]
        keys_PLCKD[target[0], :, :, target[1]] = k_NLCD
        values_PLCJD2[target[0], :, :, target[1] // 2, :, target[1] % 2] = v_NLCD


def new_pages(
    num_pages: int, num_layers: int, num_heads: int, head_dim: int, like: torch.Tensor
) -> KvPages:
    """Return zeroed pages in the dtype and on the device of `like`. On a CPU they take memory once
    they are written to.
    """
    outer = (num_pages, num_layers, num_heads)
    keys_PLCKD = new_zeros((*outer, PAGE_LEN, head_dim), like)
    return KvPages(keys_PLCKD, new_zeros((*outer, PAGE_LEN // 2, head_dim, 2), like))


def new_shared_pages(
    num_pages: int, num_layers: int, num_heads: int, head_dim: int, like: torch.Tensor
) -> KvPages:
    """Return pages for keys that are their own values: both are views of the same memory."""
    shape = (num_pages, num_layers, num_heads, PAGE_LEN, head_dim)
    keys_PLCKD = new_zeros(shape, like)
    return KvPages(keys_PLCKD, keys_PLCKD.unflatten(3, (-1, 2)).transpose(-1, -2))


def new_zeros(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Return zeros in the dtype and on the device of `like`, on a CPU without touching memory.

    Raises OSError if there is not so much.
    """
    num_bytes = math.prod(shape) * like.element_size()
    if like.device.type != "cpu" or not num_bytes:
        return like.new_zeros(shape)
    memory = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A step reads a little of each page: the addresses of small ones would be looked up for ever.
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=like.dtype).view(shape)


def slots_in_pool(pages_B: torch.Tensor, slots_N: torch.Tensor) -> torch.Tensor:
    """Return where a session's slots lie among those of all pages."""
    return pages_B[slots_N // PAGE_LEN] * PAGE_LEN + slots_N % PAGE_LEN


def values_of_pages(values_CBJD2: torch.Tensor) -> torch.Tensor:
    """Return values slot after slot, [C, S, D]."""
    return values_CBJD2.transpose(-1, -2).flatten(1, 3)


def values_of_slots(values_CBJD2: torch.Tensor, slots_RT: torch.Tensor) -> torch.Tensor:
    """Return the values in any slots, [C, R, T, D]."""
    pages_RT, within_RT = slots_RT // PAGE_LEN, slots_RT % PAGE_LEN
    return values_CBJD2[:, pages_RT, within_RT // 2, :, within_RT % 2].movedim(2, 0)
