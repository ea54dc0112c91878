"""Moves the accepted path of each tree to where the next prefix ends: all layers, one launch.

Node n of a tree lies in slot prefix_len + n; after acceptance the node at depth d belongs in slot
prefix_len + d. A path's nodes rise, so nothing is moved up, but a slot may be read by one node and
written by another. A program has one layer, one head and some columns of all the path's slots:
nobody else touches them, and it reads all before it writes any.

Legend: N sessions, X pages of a session, J nodes of a path, P pages, L layers, C key-value heads,
K = 64 slots of a page, D head size.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

from kernels.kv_pages import PAGE_LEN

_PAGE = tl.constexpr(PAGE_LEN)
_MOST_COLUMNS = 128
_WARP_ELEMENTS = 32 * 8
"""Of 16 bits, if each thread moves 16 bytes at a time."""


def move_accepted(
    pages_NX: torch.Tensor,
    prefix_len_N: torch.Tensor,
    path_NJ: torch.Tensor,
    path_len_N: torch.Tensor,
    keys_PLCKD: torch.Tensor,
    values_PLCKD: torch.Tensor | None,
) -> None:
    """Move the first `path_len` nodes of each session's path, the root among them, into order.

    A padding session has a path of length 0. Without values the keys are the values.
    """
    sessions, most_nodes = path_NJ.shape
    _, layers, kv_heads, _, head_dim = keys_PLCKD.shape
    columns, nodes_tile = (
        min(_MOST_COLUMNS, head_dim & -head_dim),
        triton.next_power_of_2(most_nodes),
    )
    _move_accepted[(sessions, layers * kv_heads, head_dim // columns)](
        pages_NX,
        prefix_len_N,
        path_NJ,
        path_len_N,
        keys_PLCKD,
        values_PLCKD,
        pages_NX.shape[1],
        heads=layers * kv_heads,
        head_dim=head_dim,
        most_nodes=most_nodes,
        nodes_tile=nodes_tile,
        columns=columns,
        num_warps=min(4, max(1, nodes_tile * columns // _WARP_ELEMENTS)),
    )


@triton.jit(do_not_specialize=["pages"])
@no_type_check
def _move_accepted(
    pages_NX,
    prefix_len_N,
    path_NJ,
    path_len_N,
    keys_PLCKD,
    values_PLCKD,
    pages,
    heads: tl.constexpr,
    head_dim: tl.constexpr,
    most_nodes: tl.constexpr,
    nodes_tile: tl.constexpr,
    columns: tl.constexpr,
):
    session, head = tl.program_id(0), tl.program_id(1)
    depth = tl.arange(0, nodes_tile)
    is_there = depth < tl.load(path_len_N + session)
    node = tl.load(path_NJ + session * most_nodes + depth, mask=is_there, other=0)
    moves = is_there & (node != depth)
    if tl.max(moves.to(tl.int32), axis=0) > 0:
        prefix_len = tl.load(prefix_len_N + session)
        pages_X = pages_NX + session.to(tl.int64) * pages
        column = tl.program_id(2) * columns + tl.arange(0, columns)[None, :]
        source = _first_element(pages_X, prefix_len + node, moves, head, heads, head_dim) + column
        target = _first_element(pages_X, prefix_len + depth, moves, head, heads, head_dim) + column
        _move(keys_PLCKD, source, target, moves[:, None])
        if values_PLCKD is not None:
            _move(values_PLCKD, source, target, moves[:, None])


@triton.jit
@no_type_check
def _first_element(pages_X, slot, there, head, heads: tl.constexpr, head_dim: tl.constexpr):
    """Where each slot of a session begins, of one head of one layer."""
    page = tl.load(pages_X + slot // _PAGE, mask=there, other=0).to(tl.int64)
    return (((page * heads + head) * _PAGE + slot % _PAGE) * head_dim)[:, None]


@triton.jit
@no_type_check
def _move(part_PLCKD, source, target, moves):
    moved = tl.load(part_PLCKD + source, mask=moves)
    # A slot is one thread's to read and another's to write.
    tl.debug_barrier()
    tl.store(part_PLCKD + target, moved, mask=moves)
