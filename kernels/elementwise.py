"""The small ops of a transformer layer: norm, rotary embedding, gated activation.

All are built from operations that are exact or that give every element the same bits wherever it
lies in memory. (`F.silu` is not: its vector and scalar forms differ in the last place.)

Legend: R rows, H hidden, A heads, D head size, F width of the feed-forward layer.
"""

from __future__ import annotations

import torch

from kernels.dispatch import Op


@Op
def rms_norm(x_RH: torch.Tensor, weight_H: torch.Tensor, eps: float) -> torch.Tensor:
    """y_i = w_i x_i / sqrt(mean(x^2) + eps), in float32, rounded before the weight as trained."""
    x32_RH = x_RH.float()
    scale_R1 = torch.rsqrt((x32_RH * x32_RH).mean(-1, keepdim=True) + eps)
    return weight_H * (x32_RH * scale_R1).to(x_RH.dtype)


@Op
def rotate(x_RAD: torch.Tensor, cos_RD: torch.Tensor, sin_RD: torch.Tensor) -> torch.Tensor:
    """Rotary embedding, half-split form: y = x cos + (-x2, x1) sin with x = (x1, x2)."""
    x1, x2 = x_RAD.chunk(2, dim=-1)
    rotated_RAD = torch.cat((-x2, x1), dim=-1)
    return x_RAD * cos_RD[:, None] + rotated_RAD * sin_RD[:, None]


@Op
def silu_mul(gate_RF: torch.Tensor, up_RF: torch.Tensor) -> torch.Tensor:
    """y = gate / (1 + exp(-gate)) * up, the activation in float32, rounded before the product."""
    gate32_RF = gate_RF.float()
    return (gate32_RF / (1 + torch.exp(-gate32_RF))).to(gate_RF.dtype) * up_RF
