"""Weights of all experts of a layer as one tensor, of 4 bits or in bfloat16.

They are made expert by expert where they are to lie: a checkpoint's, of gigabytes a layer, are
never held twice.

Legend: E experts, N outputs, K inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from kernels.gpu.packed_int4 import PackedInt4, pack_linear, stack
from kernels.gpu.stack import Weight
from kernels.linear import JoinedLinear, Linear
from kernels.quantized_linear import Int4Linear


class DenseExperts(NamedTuple):
    """In bfloat16."""

    weight_ENK: torch.Tensor

    @property
    def num_outputs(self) -> int:
        return self.weight_ENK.shape[1]

    @property
    def num_inputs(self) -> int:
        return self.weight_ENK.shape[2]


ExpertWeight = PackedInt4 | DenseExperts


def num_experts(weight: ExpertWeight) -> int:
    """Return how many experts a weight is of."""
    return len(weight[0])


def stack_experts(layers: Sequence[Linear], device: torch.device) -> ExpertWeight:
    """Lay one layer of each expert side by side on a device.

    Raises ValueError if they are neither all int4 nor all bfloat16, or have biases.
    """
    if isinstance(_parts(layers[0])[0], Int4Linear):
        return stack((_int4(layer, device) for layer in layers), len(layers))
    first = _dense(layers[0])
    weight_ENK = first.new_empty(len(layers), *first.shape, device=device)
    for expert, layer in enumerate(layers):
        weight_ENK[expert] = _dense(layer)
    return DenseExperts(weight_ENK)


def _parts(layer: Linear) -> Sequence[Linear]:
    return layer.parts if isinstance(layer, JoinedLinear) else (layer,)


def _dense(layer: Linear) -> torch.Tensor:
    weight_NK, bias_N = Weight.of(*_parts(layer))
    if bias_N is not None:
        raise ValueError("kernels for GPUs take experts without biases")
    return weight_NK


def _int4(layer: Linear, device: torch.device) -> PackedInt4:
    """Pack a layer where it is to lie: what travels is what the checkpoint holds."""
    parts = [part for part in _parts(layer) if isinstance(part, Int4Linear)]
    if len(parts) < len(_parts(layer)) or any(part.bias_N is not None for part in parts):
        raise ValueError("kernels for GPUs take experts whose weights are all int4, without biases")
    words_NX = torch.cat([part.words_NX.to(device) for part in parts])
    scale_NG = torch.cat([part.scale_NG.to(device) for part in parts])
    shape = (len(words_NX), parts[0].num_inputs)
    return pack_linear(Int4Linear.from_packed(words_NX, scale_NG, shape, scale_NG))
