"""Rotary embedding of queries and keys, and keys and values into their pages, in one launch.

    y = x cos + (-x2, x1) sin with x = (x1, x2)

Each product is rounded before the sum, as in `rotate`. Values lie slot by slot as keys do: that is
what tensor cores read.

With latent attention there is one key-value head, [latent, rotated part], whose value is part of
its key: it is written once, and only its last elements are rotated. A pair is an element and the
one half a rotated part further; DeepSeek's checkpoints pair neighbours, so the rows of the weights
that give a rotated part change places when they are loaded.

Legend: R rows, A query heads, C key-value heads, D head size, E rotated elements of it, P positions
or pages, L layers, K = 64 slots of a page.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
import triton
import triton.language as tl

from kernels.kv_pages import PAGE_LEN

_PAGE = tl.constexpr(PAGE_LEN)
_TILE_ELEMENTS = 1024


def rotate_and_store(
    q_RAE: torch.Tensor,
    k_RCD: torch.Tensor,
    v_RCD: torch.Tensor | None,
    angles: tuple[torch.Tensor, torch.Tensor],
    positions_R: torch.Tensor,
    slots_R: torch.Tensor,
    keys_PLCKD: torch.Tensor,
    values_PLCKD: torch.Tensor | None,
    layer: int,
    out_RAE: torch.Tensor,
) -> None:
    """Rotate queries to `out_RAE`, and store rotated keys and values in one layer's slots.

    `angles` are cos and sin, [P, E] each, whose halves are alike. The last E elements of a key are
    rotated; those before it, and values, are copied. Rows and heads of q, k, v and `out` may lie
    apart, and `out` may be q. Without values nothing but keys is stored.
    """
    rows, heads, rotated = q_RAE.shape
    _, layers, kv_heads, _, head_dim = keys_PLCKD.shape
    pair_tile = triton.next_power_of_2(rotated // 2)
    head_tile = min(max(1, _TILE_ELEMENTS // pair_tile), triton.next_power_of_2(heads))
    _rotate_and_store[(rows, triton.cdiv(heads, head_tile) + 1)](
        _strided(q_RAE),
        _strided(k_RCD),
        _strided(v_RCD),
        *angles,
        positions_R,
        slots_R,
        keys_PLCKD,
        values_PLCKD,
        layer,
        _strided(out_RAE),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotated=rotated,
        head_tile=head_tile,
        pair_tile=pair_tile,
        kv_head_tile=triton.next_power_of_2(kv_heads),
        num_warps=4,
    )


class _Heads(NamedTuple):
    """Rows of heads: where the first begins, and how far a row and a head lie from the next."""

    first: torch.Tensor
    row: int
    head: int


def _strided(x_RAD: torch.Tensor | None) -> _Heads | None:
    if x_RAD is None:
        return None
    assert x_RAD.stride(2) == 1, "the elements of a head lie side by side"
    return _Heads(x_RAD, x_RAD.stride(0), x_RAD.stride(1))


@triton.jit(do_not_specialize=["layer"])
@no_type_check
def _rotate_and_store(
    q_RAE,
    k_RCD,
    v_RCD,
    cos_PE,
    sin_PE,
    positions_R,
    slots_R,
    keys_PLCKD,
    values_PLCKD,
    layer,
    out_RAE,
    layers: tl.constexpr,
    heads: tl.constexpr,
    kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    rotated: tl.constexpr,
    head_tile: tl.constexpr,
    pair_tile: tl.constexpr,
    kv_head_tile: tl.constexpr,
):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pair = tl.arange(0, pair_tile)[None, :]
    is_pair = pair < rotated // 2
    turn = tl.load(positions_R + row).to(tl.int64) * rotated + pair
    cos, sin = tl.load(cos_PE + turn, mask=is_pair), tl.load(sin_PE + turn, mask=is_pair)
    if part * head_tile < heads:
        a = part * head_tile + tl.arange(0, head_tile)[:, None]
        source = q_RAE.first + row * q_RAE.row + a * q_RAE.head + pair
        target = out_RAE.first + row * out_RAE.row + a * out_RAE.head + pair
        _rotate(source, target, cos, sin, (a < heads) & is_pair, rotated)
    else:
        slot = tl.load(slots_R + row).to(tl.int64)
        if slot >= 0:
            c = tl.arange(0, kv_head_tile)[:, None]
            first_head = (slot // _PAGE * layers + layer) * kv_heads
            to = ((first_head + c) * _PAGE + slot % _PAGE) * head_dim
            k = k_RCD.first + row * k_RCD.row + c * k_RCD.head
            last = pair + (head_dim - rotated)
            there = (c < kv_heads) & is_pair
            _rotate(k + last, keys_PLCKD + to + last, cos, sin, there, rotated)
            if head_dim > rotated:
                _copy(k, keys_PLCKD + to, c < kv_heads, head_dim - rotated)
            if v_RCD is not None:
                v = v_RCD.first + row * v_RCD.row + c * v_RCD.head
                _copy(v, values_PLCKD + to, c < kv_heads, head_dim)


@triton.jit
@no_type_check
def _rotate(source, target, cos, sin, there, rotated: tl.constexpr):
    """Both halves of some heads, from one place to another, which may be the same."""
    half: tl.constexpr = rotated // 2
    x1, x2 = tl.load(source, mask=there), tl.load(source + half, mask=there)
    y1 = _rounded_product(x1, cos) - _rounded_product(x2, sin)
    y2 = _rounded_product(x2, cos) + _rounded_product(x1, sin)
    tl.store(target, y1.to(x1.dtype), mask=there)
    tl.store(target + half, y2.to(x1.dtype), mask=there)


@triton.jit
@no_type_check
def _rounded_product(x, y):
    return (x.to(tl.float32) * y.to(tl.float32)).to(x.dtype).to(tl.float32)


@triton.jit
@no_type_check
def _copy(source, target, is_head, width: tl.constexpr):
    """The first elements of some heads."""
    tile: tl.constexpr = triton.next_power_of_2(width)
    at = tl.arange(0, tile)[None, :]
    there = is_head & (at < width)
    tl.store(target + at, tl.load(source + at, mask=there), mask=there)
