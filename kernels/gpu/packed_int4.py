"""4-bit weights as the kernels read them: 256 inputs of an output are 32 words in a row.

    word i of a step = sum over j of (q[32 j + i] + 8) << 4 j,   i < 32, j < 8

So the j-th nibbles of a step's words are the j-th group of 32 inputs, with one scale: what a
program multiplies at a time is a shift, a mask and a product of the words it holds. Scales lie in
pairs, that of an even group in the low half of a word. Inputs are padded with zeros to whole steps.

Checkpoints (compressed-tensors, "pack-quantized") have the same nibbles in another order: word i of
an output holds its inputs 8 i to 8 i + 7.

Legend: N outputs, K inputs, G = 32 inputs a group, T steps of 256 inputs, I = 32 words of one,
E experts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F

from kernels.quantized_linear import INT4_GROUP, Int4Linear, unpack_int4

STEP_INPUTS = 8 * INT4_GROUP
_ZERO = 8


class PackedInt4(NamedTuple):
    """A weight, or those of all experts with one more dimension in front."""

    words_NTI: torch.Tensor
    """int32."""
    scales_T4N: torch.Tensor
    """int32: pairs of bfloat16."""
    num_inputs: int

    @property
    def num_outputs(self) -> int:
        return self.words_NTI.shape[-3]

    @property
    def num_steps(self) -> int:
        return self.words_NTI.shape[-2]


def pack_checkpoint(weight_packed: torch.Tensor, weight_scale_NG: torch.Tensor) -> PackedInt4:
    """Pack what a checkpoint holds: int32 [N, K / 8] and scales [N, K / 32].

    Raises ValueError if they are not of one weight in groups of 32.
    """
    outputs, words = weight_packed.shape
    if tuple(weight_scale_NG.shape) != (outputs, -(-8 * words // INT4_GROUP)):
        raise ValueError(
            f"{words} words and {weight_scale_NG.shape[1]} scales an output are not groups of 32"
        )
    return _pack(unpack_int4(weight_packed.int(), 8 * words), weight_scale_NG)


def pack_linear(layer: Int4Linear) -> PackedInt4:
    """Pack a layer of the reference, where it lies.

    Raises ValueError for scales that bfloat16 does not hold.
    """
    if not torch.equal(layer.scale_NG, layer.scale_NG.bfloat16().to(layer.scale_NG.dtype)):
        raise ValueError(
            f"kernels for GPUs take int4 weights with bfloat16 scales; these are "
            f"{layer.scale_NG.dtype}, and bfloat16 would round them"
        )
    return _pack(layer.q_NK, layer.scale_NG)


def stack(experts: Iterable[PackedInt4], num_experts: int) -> PackedInt4:
    """Lay the weights of experts, all of one shape, one after the other, as they come."""
    for expert, packed in enumerate(experts):
        if not expert:
            words_ENTI, scales_ET4N = (x.new_empty(num_experts, *x.shape) for x in packed[:2])
        words_ENTI[expert], scales_ET4N[expert] = packed[:2]
    return PackedInt4(words_ENTI, scales_ET4N, packed.num_inputs)


def _pack(q_NK: torch.Tensor, scale_NG: torch.Tensor) -> PackedInt4:
    inputs = q_NK.shape[1]
    nibbles_NK = F.pad(q_NK.int(), (0, -inputs % STEP_INPUTS)) + _ZERO
    nibbles_NTJI = nibbles_NK.unflatten(1, (-1, 8, INT4_GROUP))
    words_NTI = torch.zeros_like(nibbles_NTJI[:, :, 0])
    for j in range(8):
        words_NTI |= nibbles_NTJI[:, :, j] << 4 * j
    groups = 8 * words_NTI.shape[1]
    scale_NG = F.pad(scale_NG.bfloat16(), (0, groups - scale_NG.shape[1]))
    pairs_NT4 = scale_NG.contiguous().view(torch.int32).unflatten(1, (-1, 4))
    return PackedInt4(words_NTI, pairs_NT4.permute(1, 2, 0).contiguous(), inputs)
