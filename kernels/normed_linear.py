"""A linear layer and the norm before it, with results in float32: an output head is one.

Legend: R rows, K inputs, N outputs.
"""

from __future__ import annotations

from typing import Any

import torch

from kernels.dispatch import Op
from kernels.elementwise import rms_norm
from kernels.linear import Linear


class NormedLinear:
    """The layer's weights. Without a norm, x is taken as it is."""

    def __init__(
        self, linear: Linear, norm_K: torch.Tensor | None = None, eps: float = 0.0
    ) -> None:
        self.linear = linear
        self.norm_K = norm_K
        self.eps = eps
        self.packed = pack_normed_linear(linear.like, self)


@Op
def pack_normed_linear(like: torch.Tensor, layer: NormedLinear) -> Any:
    """What an implementation keeps of a layer whose activations are `like` this. Here nothing."""
    del like, layer


@Op
def normed_linear(x_RK: torch.Tensor, layer: NormedLinear) -> torch.Tensor:
    """y = W norm(x) + b, float32, [R, N]."""
    norm_K = layer.norm_K
    normed_RK = x_RK if norm_K is None else rms_norm(x_RK, norm_K, layer.eps)
    return layer.linear(normed_RK).float()
