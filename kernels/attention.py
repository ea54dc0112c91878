"""Attention whose reduction follows absolute positions.

A query's softmax is summed over keys in blocks of 64 absolute positions, block after block, from
position 0. Keys that a row may not see add an exact zero. So a token's output has the same bits
whether its predecessors lie in the cache, in the same chunk, or on a branch of a draft tree, and
whatever else is in the call. The maximum needs no order: it is exact.

As in linear layers, every product has 16 rows: without AVX-512, matrix libraries do give 16 queries
other bits in a product of 32 or 192.

Legend: R rows, A query heads, C key-value heads, G query heads a key-value head, D head size,
S slots of a session, T positions of a tail, B row blocks of P = 16 queries, X pages of a session,
of J = 32 pairs of slots each (see `kv_pages`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F

from kernels import tree
from kernels.dispatch import Op
from kernels.kv_pages import (
    PAGE_LEN,
    KvPages,
    slots_in_pool,
    values_of_pages,
    values_of_slots,
    whole_pages,
)
from kernels.linear import ROW_BLOCK, padded_rows


@dataclass(frozen=True)
class RowLayout:
    """Which keys each of a session's rows may see. Made once, used by every layer.

    The session's slots lie in `pages_X`. Positions count from the first slot; what lies there is at
    `first_position` of the text. Row i lies in slot prefix_len + i. Rows of a chain lie where their
    positions say: their keys are the slots below `trunk_len` up to their own. A row of a tree sees
    the slots below `trunk_len`, and gathers those after them along its own path (`tail_slots_RT`).
    """

    pages_X: torch.Tensor
    prefix_len: int
    positions_R: torch.Tensor
    trunk_len: int
    tail_slots_RT: torch.Tensor | None
    first_position: int = 0

    @property
    def num_rows(self) -> int:
        return len(self.positions_R)

    @cached_property
    def pool_slots_R(self) -> torch.Tensor:  # noqa: N802
        """Where the rows themselves lie among the slots of all pages."""
        end = self.prefix_len + self.num_rows
        slots_R = torch.arange(self.prefix_len, end, device=self.pages_X.device)
        return slots_in_pool(self.pages_X, slots_R)

    @cached_property
    def padded(self) -> RowLayout:
        """Return the layout with rows up to whole row blocks. The new ones see something, too."""
        padding = padded_rows(len(self.positions_R)) - len(self.positions_R)
        if self.tail_slots_RT is None:
            return replace(self, positions_R=F.pad(self.positions_R, (0, padding)))
        positions_R = F.pad(self.positions_R, (0, padding), value=self.trunk_len)
        tails_RT = F.pad(self.tail_slots_RT, (0, 0, 0, padding))
        return replace(self, positions_R=positions_R, tail_slots_RT=tails_RT)

    @cached_property
    def unseen_R1T(self) -> torch.Tensor:  # noqa: N802
        """What each row may not see: of all slots in a chain, of its own tail in a tree."""
        if self.tail_slots_RT is None:
            first, width = 0, self.trunk_len
        else:
            first, width = self.trunk_len, self.tail_slots_RT.shape[1]
        keys_T = torch.arange(first, first + width, device=self.positions_R.device)
        return keys_T > self.positions_R[:, None, None]


def lay_out_rows(
    pages_X: torch.Tensor, prefix_len: int, parents: Sequence[int], first_position: int = 0
) -> RowLayout:
    """Return the layout of rows whose tree is `parents`, the first one following the prefix.

    The session's pages must hold the prefix and all rows.
    """
    end = prefix_len + len(parents)
    assert end <= len(pages_X) * PAGE_LEN, (prefix_len, parents, pages_X)
    if tree.is_chain(parents):
        positions_R = torch.arange(prefix_len, end, device=pages_X.device)
        seen = whole_pages(end)
        return RowLayout(pages_X, prefix_len, positions_R, seen, None, first_position)
    return lay_out_branches(pages_X, prefix_len, tree.paths(parents), first_position)


def lay_out_branches(
    pages_X: torch.Tensor,
    prefix_len: int,
    paths: Sequence[Sequence[int]],
    first_position: int = 0,
) -> RowLayout:
    """Return the layout of some nodes of a tree after the prefix, in one row after the other.

    A path are the nodes from the tree's root to the row's own. Node n lies in slot prefix_len + n;
    those that are no rows lie there already. The session's pages must hold all.
    """
    first_slot = prefix_len + paths[0][-1]
    assert [path[-1] for path in paths] == list(range(paths[0][-1], paths[0][-1] + len(paths)))
    assert first_slot + len(paths) <= len(pages_X) * PAGE_LEN, (prefix_len, paths, pages_X)
    device = pages_X.device
    trunk_len = prefix_len // PAGE_LEN * PAGE_LEN
    shared = list(range(trunk_len, prefix_len))
    slots = [shared + [prefix_len + node for node in path] for path in paths]
    width = whole_pages(max(map(len, slots)))
    tail_slots_RT = torch.tensor([row + [0] * (width - len(row)) for row in slots], device=device)
    positions_R = torch.tensor([trunk_len + len(row) - 1 for row in slots], device=device)
    return RowLayout(pages_X, first_slot, positions_R, trunk_len, tail_slots_RT, first_position)


@Op
def position_blocked_attention(
    q_RAD: torch.Tensor, kv: KvPages, layer: int, layout: RowLayout, scale: float
) -> torch.Tensor:
    """softmax(scale q k^T) v over the keys each row may see, in float32. Returns [R, A, D].

    The rows' own keys and values must already lie in their slots of the layer. R * G must fill
    whole row blocks, and the session's pages must be finite wherever the layout reaches.
    """
    keys_CSD, values_CXJD2 = kv.of_session(layer, layout.pages_X)
    q_CRGD = (q_RAD.float() * scale).unflatten(1, (len(keys_CSD), -1)).transpose(0, 1)
    attend = _attend_chain if layout.tail_slots_RT is None else _attend_tree
    out_CRGD = attend(q_CRGD, keys_CSD, values_CXJD2, layout)
    return out_CRGD.transpose(0, 1).flatten(1, 2).to(q_RAD.dtype)


def _attend_chain(
    q_CRGD: torch.Tensor, keys_CSD: torch.Tensor, values_CXJD2: torch.Tensor, layout: RowLayout
) -> torch.Tensor:
    q_CBPD = _packed(q_CRGD)
    scores_CBPS = _products(q_CBPD, _trunk_keys(keys_CSD, q_CBPD, layout).mT)
    scores_CRGS = scores_CBPS.view(*q_CRGD.shape[:3], -1)
    scores_CRGS.masked_fill_(layout.unseen_R1T, -torch.inf)
    weights_CBPS = torch.exp(scores_CBPS - scores_CBPS.amax(-1, keepdim=True))
    sums_CBP1 = _block_sums(weights_CBPS).cumsum(-1)[..., -1:]
    out_CBPD = torch.zeros_like(q_CBPD)
    _add_blocks(out_CBPD, weights_CBPS, _trunk_values(values_CXJD2, q_CBPD, layout))
    return (out_CBPD / sums_CBP1).view(q_CRGD.shape)


def _attend_tree(
    q_CRGD: torch.Tensor, keys_CSD: torch.Tensor, values_CXJD2: torch.Tensor, layout: RowLayout
) -> torch.Tensor:
    assert layout.tail_slots_RT is not None
    shape = q_CRGD.shape
    trunk_CBPS, tail_1BPT = _tree_weights(q_CRGD, keys_CSD, layout)
    trunk_sums_CRGX = _block_sums(trunk_CBPS).view(*shape[:3], -1)
    tail_sums_CRGX = _unspread(_block_sums(tail_1BPT), shape)
    sums_CRG1 = torch.cat((trunk_sums_CRGX, tail_sums_CRGX), dim=-1).cumsum(-1)[..., -1:]
    out_CBPD = trunk_CBPS.new_zeros(*trunk_CBPS.shape[:3], shape[-1])
    _add_blocks(out_CBPD, trunk_CBPS, _trunk_values(values_CXJD2, out_CBPD, layout))
    out_1BPD = _spread(out_CBPD.view(shape))
    tail_CRTD = values_of_slots(values_CXJD2, layout.tail_slots_RT)
    _add_blocks(out_1BPD, tail_1BPT, _tail(tail_CRTD, out_1BPD))
    return _unspread(out_1BPD, shape) / sums_CRG1


def _tree_weights(
    q_CRGD: torch.Tensor, keys_CSD: torch.Tensor, layout: RowLayout
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return exp(score - maximum of its query) over the trunk, packed, and the tail, spread."""
    assert layout.tail_slots_RT is not None
    q_CBPD, spread_q_1BPD = _packed(q_CRGD), _spread(q_CRGD)
    trunk_CBPS = _products(q_CBPD, _trunk_keys(keys_CSD, q_CBPD, layout).mT)
    tail_1BPT = _products(spread_q_1BPD, _tail(keys_CSD[:, layout.tail_slots_RT], spread_q_1BPD).mT)
    tail_CRXT = tail_1BPT.view(*q_CRGD.shape[:2], -1, tail_1BPT.shape[-1])
    tail_CRXT.masked_fill_(layout.unseen_R1T, -torch.inf)
    maxima_CRG1 = _unspread(tail_1BPT.amax(-1, keepdim=True), q_CRGD.shape)
    if layout.trunk_len:
        trunk_maxima_CRG1 = trunk_CBPS.amax(-1).view(*q_CRGD.shape[:3], 1)
        maxima_CRG1 = torch.maximum(maxima_CRG1, trunk_maxima_CRG1)
    trunk_CBPS = torch.exp(trunk_CBPS - _packed(maxima_CRG1))
    return trunk_CBPS, torch.exp(tail_1BPT - _spread(maxima_CRG1))


def _packed(x_CRGX: torch.Tensor) -> torch.Tensor:
    """Return the queries of all rows one after the other, in row blocks."""
    return x_CRGX.reshape(x_CRGX.shape[0], -1, ROW_BLOCK, x_CRGX.shape[-1])


def _spread(x_CRGX: torch.Tensor) -> torch.Tensor:
    """Return the queries of each row padded to row blocks of its own, in one batch of all heads."""
    padded = F.pad(x_CRGX, (0, 0, 0, -x_CRGX.shape[2] % ROW_BLOCK))
    return padded.reshape(1, -1, ROW_BLOCK, x_CRGX.shape[-1])


def _unspread(x_1BPX: torch.Tensor, shape_CRGD: torch.Size) -> torch.Tensor:
    padded = x_1BPX.view(*shape_CRGD[:2], -1, x_1BPX.shape[-1])
    return padded[:, :, : shape_CRGD[2]]


def _trunk_keys(keys_CSD: torch.Tensor, q_CBPD: torch.Tensor, layout: RowLayout) -> torch.Tensor:
    return _for_all_blocks(keys_CSD[:, : layout.trunk_len], q_CBPD)


def _trunk_values(
    values_CXJD2: torch.Tensor, q_CBPD: torch.Tensor, layout: RowLayout
) -> torch.Tensor:
    blocks_CXJD2 = values_CXJD2[:, : layout.trunk_len // PAGE_LEN]
    return _for_all_blocks(values_of_pages(blocks_CXJD2), q_CBPD)


def _for_all_blocks(trunk_CSD: torch.Tensor, q_CBPD: torch.Tensor) -> torch.Tensor:
    """Return the trunk of keys or values, which all row blocks share, [C, B, S, D]."""
    return trunk_CSD.float()[:, None].expand(-1, q_CBPD.shape[1], -1, -1)


def _tail(tail_CRTD: torch.Tensor, q_1BPD: torch.Tensor) -> torch.Tensor:
    """Return the keys or values after the trunk on the path of each block's row, [1, B, T, D]."""
    blocks = q_1BPD.shape[1] // (tail_CRTD.shape[0] * tail_CRTD.shape[1])
    shared = tail_CRTD.float()[:, :, None].expand(-1, -1, blocks, -1, -1)
    return shared.reshape(1, -1, *tail_CRTD.shape[2:])


def _products(a_CBPX: torch.Tensor, b_CBXY: torch.Tensor) -> torch.Tensor:
    out_CBPY = a_CBPX.new_empty(*a_CBPX.shape[:3], b_CBXY.shape[-1])
    for a_BPX, b_BXY, out_BPY in zip(a_CBPX, b_CBXY, out_CBPY, strict=True):
        torch.bmm(a_BPX, b_BXY, out=out_BPY)
    return out_CBPY


def _add_blocks(out_CBPD: torch.Tensor, weights_CBPS: torch.Tensor, v_CBSD: torch.Tensor) -> None:
    """Add weights @ values to `out`, key block after key block."""
    for out_BPD, weights_BPS, v_BSD in zip(out_CBPD, weights_CBPS, v_CBSD, strict=True):
        for start in range(0, weights_BPS.shape[-1], PAGE_LEN):
            block = slice(start, start + PAGE_LEN)
            out_BPD.baddbmm_(weights_BPS[..., block], v_BSD[:, block])


def _block_sums(weights_CBPS: torch.Tensor) -> torch.Tensor:
    return weights_CBPS.unflatten(-1, (-1, PAGE_LEN)).sum(-1)
