"""Where the keys and values of a session's slots lie.

A slot is a position of the session's text, or a row that may become one. Keys lie slot after slot.
Values lie transposed within blocks of 64 slots: a product over keys reads along them, and a block
is whole in memory however long the session is.

Legend: C key-value heads, S slots, D head size, B blocks of K = 64 slots, R rows, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

KEY_BLOCK = 64


def whole_blocks(num_slots: int) -> int:
    """Return the number of slots rounded up to whole blocks."""
    return -(-num_slots // KEY_BLOCK) * KEY_BLOCK


def new_slots(
    outer: Sequence[int], num_slots: int, head_dim: int, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return zeroed keys [*outer, S, D] and values [*outer, B, D, K] of a multiple of 64 slots.

    Zeros, not empty: attention multiplies unseen slots by an exact 0, so they must be finite.
    """
    assert num_slots % KEY_BLOCK == 0, num_slots
    keys = like.new_zeros(*outer, num_slots, head_dim)
    values = like.new_zeros(*outer, num_slots // KEY_BLOCK, head_dim, KEY_BLOCK)
    return keys, values


def write_rows(
    keys_CSD: torch.Tensor,
    values_CBDK: torch.Tensor,
    slot: int,
    k_RCD: torch.Tensor,
    v_RCD: torch.Tensor,
) -> None:
    """Store rows in consecutive slots, over what was there."""
    slots_R = torch.arange(slot, slot + len(k_RCD), device=keys_CSD.device)
    keys_CSD[:, slot : slot + len(k_RCD)] = k_RCD.transpose(0, 1)
    values_CBDK[:, slots_R // KEY_BLOCK, :, slots_R % KEY_BLOCK] = v_RCD


def move_slots(
    keys_LCSD: torch.Tensor, values_LCBDK: torch.Tensor, source: Sequence[int], target: int
) -> None:
    """Move slots, in the order given, to consecutive ones from `target` on, in all layers."""
    from_P = torch.tensor(source, device=keys_LCSD.device)
    to_P = torch.arange(target, target + len(source), device=keys_LCSD.device)
    keys_LCSD[:, :, to_P] = keys_LCSD[:, :, from_P]
    moved_PLCD = values_LCBDK[:, :, from_P // KEY_BLOCK, :, from_P % KEY_BLOCK]
    values_LCBDK[:, :, to_P // KEY_BLOCK, :, to_P % KEY_BLOCK] = moved_PLCD


def values_of_blocks(values_CBDK: torch.Tensor) -> torch.Tensor:
    """Return values slot after slot, [C, S, D]."""
    return values_CBDK.transpose(-1, -2).flatten(1, 2)


def values_of_slots(values_CBDK: torch.Tensor, slots_RT: torch.Tensor) -> torch.Tensor:
    """Return the values in any slots, [C, R, T, D]."""
    return values_CBDK[:, slots_RT // KEY_BLOCK, :, slots_RT % KEY_BLOCK].movedim(2, 0)
