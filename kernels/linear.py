"""Linear layers in fixed row blocks.

A matrix library picks its algorithm by the number of rows, so a token's floats would depend on how
many tokens share the call: 48 rows of bf16 do not give the bits that 16 rows give. Here every
product has the same number of rows, whatever the batch. Padding is nearly free: a bf16 product
costs the same for 1 and for 16 rows.

Legend: R rows, N outputs, K inputs.
"""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

import torch
import torch.nn.functional as F

from kernels.dispatch import Op

ROW_BLOCK = 16
WIDE_ROW_BLOCK = 32
# Inputs of a row that together are a whole number of vectors, in every dtype.
_ALIGNED = 32


def padded_rows(num_rows: int) -> int:
    """Return the number of rows rounded up to whole row blocks."""
    return -(-num_rows // ROW_BLOCK) * ROW_BLOCK


@Op
def row_blocked_linear(
    x_RK: torch.Tensor, weight_NK: torch.Tensor, bias_N: torch.Tensor | None, wide: bool
) -> torch.Tensor:
    """y_RN = x_RK W^T + b, with 16 rows in every product, or 32 where that gives the same bits."""
    rows = x_RK.shape[0]
    if missing := -x_RK.shape[1] % _ALIGNED:
        # No model is like this. Where rows begin between vectors, MKL sums some in another order.
        x_RK, weight_NK = F.pad(x_RK, (0, missing)), F.pad(weight_NK, (0, missing))
    if rows == ROW_BLOCK:
        return F.linear(x_RK, weight_NK, bias_N)
    if rows % ROW_BLOCK:
        x_RK = F.pad(x_RK, (0, 0, 0, padded_rows(rows) - rows))
    blocks = x_RK.split(WIDE_ROW_BLOCK if wide else ROW_BLOCK)
    y_RN = torch.cat([F.linear(block, weight_NK, bias_N) for block in blocks])
    return y_RN[:rows]


class Linear(Protocol):
    """A linear layer whose weight may be kept in any format."""

    @property
    def like(self) -> torch.Tensor:
        """An empty tensor of the dtype and device of the activations."""

    def __call__(self, x_RK: torch.Tensor) -> torch.Tensor:
        """Return y_RN."""


class DivisibleLinear(Linear, Protocol):
    """A linear layer of one weight, which has slices. They are views of it."""

    bias_N: torch.Tensor | None

    @property
    def num_outputs(self) -> int: ...

    @property
    def num_inputs(self) -> int: ...

    def of_outputs(self, span: slice) -> Linear:
        """Return the layer of some outputs."""

    def of_inputs(self, span: slice, bias_N: torch.Tensor | None) -> Linear:
        """Return what the weight does with some inputs, and another bias."""


class DenseLinear:
    """A weight and a bias in the dtype of the activations."""

    def __init__(self, weight_NK: torch.Tensor, bias_N: torch.Tensor | None = None) -> None:
        self.weight_NK = weight_NK
        self.bias_N = bias_N
        self.like = weight_NK.new_empty(0)

    def __call__(self, x_RK: torch.Tensor) -> torch.Tensor:
        return row_blocked_linear(x_RK, self.weight_NK, self.bias_N, self._wide)

    @property
    def num_outputs(self) -> int:
        return self.weight_NK.shape[0]

    @property
    def num_inputs(self) -> int:
        return self.weight_NK.shape[1]

    def of_outputs(self, span: slice) -> DenseLinear:
        """Return the layer of some outputs; a view."""
        return DenseLinear(self.weight_NK[span], of_bias(self.bias_N, span))

    def of_inputs(self, span: slice, bias_N: torch.Tensor | None) -> DenseLinear:
        """Return what the weight does with some inputs, and another bias; a view."""
        return DenseLinear(self.weight_NK[:, span], bias_N)

    @cached_property
    def _wide(self) -> bool:
        return _wide_blocks_agree(self.weight_NK)


def of_bias(bias_N: torch.Tensor | None, span: slice) -> torch.Tensor | None:
    """Return the bias of some outputs, if there is one."""
    return None if bias_N is None else bias_N[span]


class JoinedLinear:
    """Layers that read the same rows, the outputs of one beside those of the next."""

    def __init__(self, *parts: Linear) -> None:
        self.parts = parts
        self.like = parts[0].like

    def __call__(self, x_RK: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x_RK) for part in self.parts], dim=-1)


_agreements: dict[tuple[int, int, torch.dtype, torch.device], bool] = {}


def _wide_blocks_agree(weight_NK: torch.Tensor) -> bool:
    """Whether 32-row products of this shape give the bits of 16-row ones on this machine.

    They take little longer than 16-row ones, and on the machines seen so far they agree; a matrix
    library is free to differ, so it is measured, once a shape, not assumed.
    """
    outputs, inputs = weight_NK.shape
    shape = (outputs, inputs, weight_NK.dtype, weight_NK.device)
    if shape not in _agreements:
        generator = torch.Generator().manual_seed(0)
        x_RK = torch.randn(WIDE_ROW_BLOCK, inputs, generator=generator).to(weight_NK)
        narrow = torch.cat([F.linear(block, weight_NK) for block in x_RK.split(ROW_BLOCK)])
        _agreements[shape] = torch.equal(F.linear(x_RK, weight_NK), narrow)
    return _agreements[shape]
