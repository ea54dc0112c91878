"""Attention whose reduction follows absolute positions.

A query's softmax is summed over keys in blocks of 64 absolute positions, block after block, from
position 0. Keys that a row may not see add an exact zero. So a token's output has the same bits
whether its predecessors lie in the cache, in the same chunk, or on a branch of a draft tree, and
whatever else is in the call. The maximum needs no order: it is exact.

Legend: R rows, A query heads, C key-value heads, G query heads a key-value head, D head size,
S slots of the cache, T positions of a tail, M = R * G.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from kernels import tree
from kernels.dispatch import Op
from kernels.linear import ROW_BLOCK

KEY_BLOCK = 64


@dataclass(frozen=True)
class RowLayout:
    """Which keys each row of a forward may see. Made once, used by every layer.

    The session's first `prefix_len` positions lie in slots of the same number and are seen by all
    rows; row i itself lies in slot prefix_len + i. Rows of a chain lie where their positions say,
    so one causal mask does (`unseen_R1T` over all slots). A row of a tree gathers the slots from
    `trunk_len` on along its own path (`tail_slots_RT`).
    """

    prefix_len: int
    positions_R: torch.Tensor
    trunk_len: int
    unseen_R1T: torch.Tensor
    tail_slots_RT: torch.Tensor | None


def lay_out_rows(prefix_len: int, parents: Sequence[int], device: torch.device) -> RowLayout:
    """Return the layout of rows whose tree is `parents`, the first one following the prefix."""
    if tree.is_chain(parents):
        return _lay_out_chain(prefix_len, len(parents), device)
    return _lay_out_tree(prefix_len, parents, device)


def _lay_out_chain(prefix_len: int, rows: int, device: torch.device) -> RowLayout:
    positions_R = torch.arange(prefix_len, prefix_len + rows, device=device)
    slots_S = torch.arange(_whole_blocks(prefix_len + rows), device=device)
    unseen_R1S = slots_S > positions_R[:, None, None]
    return RowLayout(prefix_len, positions_R, len(slots_S), unseen_R1S, None)


def _lay_out_tree(prefix_len: int, parents: Sequence[int], device: torch.device) -> RowLayout:
    trunk_len = prefix_len // KEY_BLOCK * KEY_BLOCK
    shared = list(range(trunk_len, prefix_len))
    slots = [shared + [prefix_len + node for node in path] for path in tree.paths(parents)]
    width = _whole_blocks(max(map(len, slots)))
    tail_slots_RT = torch.tensor([row + [0] * (width - len(row)) for row in slots], device=device)
    lengths_R = torch.tensor([len(row) for row in slots], device=device)
    unseen_R1T = torch.arange(width, device=device) >= lengths_R[:, None, None]
    return RowLayout(prefix_len, trunk_len + lengths_R - 1, trunk_len, unseen_R1T, tail_slots_RT)


def _whole_blocks(length: int) -> int:
    return -(-length // KEY_BLOCK) * KEY_BLOCK


@Op
def position_blocked_attention(
    q_RAD: torch.Tensor,
    keys_CSD: torch.Tensor,
    values_CSD: torch.Tensor,
    layout: RowLayout,
    scale: float,
) -> torch.Tensor:
    """softmax(scale q k^T) v over the keys each row may see, in float32. Returns [R, A, D].

    The rows' own keys and values must already lie in the cache. R * G must fill whole row blocks,
    and the cache must be finite wherever the layout reaches.
    """
    rows, heads, head_dim = q_RAD.shape
    groups = heads // keys_CSD.shape[0]
    q_CMD = _by_key_head(q_RAD.float() * scale, keys_CSD.shape[0])
    trunk = slice(0, layout.trunk_len)
    k_CSD, v_CSD = keys_CSD[:, trunk].float(), values_CSD[:, trunk].float()
    scores_CMS = q_CMD @ k_CSD.transpose(1, 2)
    if layout.tail_slots_RT is None:
        scores_CRGS = scores_CMS.unflatten(1, (rows, groups))
        scores_CRGS.masked_fill_(layout.unseen_R1T, -torch.inf)
        out_CMD = _softmax_times_values(scores_CMS, v_CSD)
    else:
        tail = _Tail(q_CMD, keys_CSD, values_CSD, layout)
        out_CMD = tail.attend(scores_CMS, v_CSD)
    out_RAD = out_CMD.view(-1, rows, groups, head_dim).transpose(0, 1)
    return out_RAD.reshape(rows, heads, head_dim).to(q_RAD.dtype)


def _by_key_head(q_RAD: torch.Tensor, key_heads: int) -> torch.Tensor:
    rows, heads, head_dim = q_RAD.shape
    q_RCGD = q_RAD.view(rows, key_heads, heads // key_heads, head_dim)
    return q_RCGD.transpose(0, 1).reshape(key_heads, -1, head_dim)


def _softmax_times_values(scores_CMS: torch.Tensor, v_CSD: torch.Tensor) -> torch.Tensor:
    maxima_CM1 = scores_CMS.amax(-1, keepdim=True)
    weights_CMS = torch.exp(scores_CMS - maxima_CM1)
    zeros_CMD = weights_CMS.new_zeros(*weights_CMS.shape[:2], v_CSD.shape[-1])
    sums_CM1 = _block_sums(weights_CMS).cumsum(-1)[..., -1:]
    return _add_blocks(zeros_CMD, weights_CMS, v_CSD) / sums_CM1


def _block_sums(weights_BMS: torch.Tensor) -> torch.Tensor:
    return weights_BMS.unflatten(-1, (-1, KEY_BLOCK)).sum(-1)


def _add_blocks(
    out_BMD: torch.Tensor, weights_BMS: torch.Tensor, v_BSD: torch.Tensor
) -> torch.Tensor:
    """Add weights @ values to `out`, key block after key block."""
    for start in range(0, weights_BMS.shape[-1], KEY_BLOCK):
        block = slice(start, start + KEY_BLOCK)
        out_BMD = torch.baddbmm(out_BMD, weights_BMS[..., block], v_BSD[:, block])
    return out_BMD


class _Tail:
    """The keys after the trunk, gathered for each row along its own path.

    A row's G queries are padded to a whole row block, so that its products have the shape they have
    in a chain. B = C * R is the batch of those products, P the padded G.
    """

    def __init__(
        self,
        q_CMD: torch.Tensor,
        keys_CSD: torch.Tensor,
        values_CSD: torch.Tensor,
        layout: RowLayout,
    ) -> None:
        assert layout.tail_slots_RT is not None
        self._rows = layout.tail_slots_RT.shape[0]
        self._groups = q_CMD.shape[1] // self._rows
        self._values_BTD = values_CSD[:, layout.tail_slots_RT].float().flatten(0, 1)
        k_BTD = keys_CSD[:, layout.tail_slots_RT].float().flatten(0, 1)
        self._scores_BPT = self._padded(q_CMD) @ k_BTD.transpose(1, 2)
        scores_CRPT = self._scores_BPT.unflatten(0, (-1, self._rows))
        scores_CRPT.masked_fill_(layout.unseen_R1T, -torch.inf)

    def attend(self, trunk_scores_CMS: torch.Tensor, trunk_v_CSD: torch.Tensor) -> torch.Tensor:
        """Return the output over trunk and tail, [C, M, D]."""
        maxima_CM1 = self._unpadded(self._scores_BPT.amax(-1, keepdim=True))
        if trunk_scores_CMS.shape[-1]:
            maxima_CM1 = torch.maximum(maxima_CM1, trunk_scores_CMS.amax(-1, keepdim=True))
        trunk_CMS = torch.exp(trunk_scores_CMS - maxima_CM1)
        tail_BPT = torch.exp(self._scores_BPT - self._padded(maxima_CM1))
        block_sums = (_block_sums(trunk_CMS), self._unpadded(_block_sums(tail_BPT)))
        sums_CM1 = torch.cat(block_sums, dim=-1).cumsum(-1)[..., -1:]
        zeros_CMD = trunk_CMS.new_zeros(*trunk_CMS.shape[:2], trunk_v_CSD.shape[-1])
        out_CMD = _add_blocks(zeros_CMD, trunk_CMS, trunk_v_CSD)
        out_BPD = _add_blocks(self._padded(out_CMD), tail_BPT, self._values_BTD)
        return self._unpadded(out_BPD) / sums_CM1

    def _padded(self, x_CMX: torch.Tensor) -> torch.Tensor:
        x_BGX = x_CMX.reshape(-1, self._groups, x_CMX.shape[-1])
        return F.pad(x_BGX, (0, 0, 0, -self._groups % ROW_BLOCK))

    def _unpadded(self, x_BPX: torch.Tensor) -> torch.Tensor:
        x_BGX = x_BPX[:, : self._groups]
        return x_BGX.reshape(-1, self._rows * self._groups, x_BPX.shape[-1])
