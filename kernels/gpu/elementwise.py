"""Norms and the gated activation on a GPU; formulas and roundings are those of `elementwise`.

A program has one whole row of a norm, or one tile of an activation's row. Rows may lie in wider
buffers: gate and up are halves of one product, and one half of a pair is the residual stream.

Legend: R rows, H hidden, F width of the feed-forward layer, V vocabulary, P parts of a sum.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import triton
import triton.language as tl

_SMALLEST_NORM = 128
_NORM_WARPS = {128: 1, 256: 1, 512: 2, 1024: 4, 2048: 4, 4096: 8, 8192: 8, 16384: 16, 32768: 16}
_ACTIVATION_TILE = 2048


def rms_norm(x_RH: torch.Tensor, weight_H: torch.Tensor, eps: float, out_RH: torch.Tensor) -> None:
    """y_i = w_i x_i / sqrt(mean(x^2) + eps), rounded before the weight. `out` may be `x`.

    Rows of heads, [R, A, H], are normed head by head.
    """
    width = x_RH.shape[-1]
    _rms_norm[(len(x_RH), x_RH.shape[1] if x_RH.ndim == 3 else 1)](
        *_with_strides(x_RH), weight_H, *_with_strides(out_RH), eps, width, **_norm_tile(width)
    )


def add_rms_norm(
    x_RH: torch.Tensor,
    residual_RH: torch.Tensor,
    weight_H: torch.Tensor,
    eps: float,
    sum_RH: torch.Tensor,
    out_RH: torch.Tensor,
) -> None:
    """h = residual + x, to `sum` (which may be `residual`), and its norm, to `out`.

    Where x are parts of sums, [P, R, H], they are added first, in their order and in float32.
    """
    rows, width = residual_RH.shape
    x_PRH, parts = (x_RH, len(x_RH)) if x_RH.ndim == 3 else (x_RH[None], 1)
    assert x_PRH.stride(2) == 1, "the elements of a row lie side by side"
    _add_rms_norm[(rows,)](
        x_PRH,
        x_PRH.stride(1),
        x_PRH.stride(0),
        *_with_stride(residual_RH),
        weight_H,
        *_with_stride(sum_RH),
        *_with_stride(out_RH),
        eps,
        width,
        parts=parts,
        **_norm_tile(width),
    )


def norm_pair(
    tokens_R: torch.Tensor,
    embedding_VH: torch.Tensor,
    embedding_norm_H: torch.Tensor | None,
    h_RH: torch.Tensor,
    hidden_norm_H: torch.Tensor,
    eps: float,
    pair_R2H: torch.Tensor,
) -> None:
    """[norm(embedding of the token), norm(h)]: what an EAGLE-3 drafter's attention reads.

    Without an `embedding_norm` embeddings are taken as they are.
    """
    rows, width = h_RH.shape
    _norm_pair[(rows, 2)](
        tokens_R,
        embedding_VH,
        embedding_norm_H,
        *_with_stride(h_RH),
        hidden_norm_H,
        *_with_stride(pair_R2H),
        eps,
        width,
        **_norm_tile(width),
    )


def silu_mul(gate_RF: torch.Tensor, up_RF: torch.Tensor, out_RF: torch.Tensor) -> None:
    """y = gate / (1 + exp(-gate)) up, the activation rounded before the product."""
    rows, width = gate_RF.shape
    _silu_mul[(rows, triton.cdiv(width, _ACTIVATION_TILE))](
        *_with_stride(gate_RF),
        *_with_stride(up_RF),
        *_with_stride(out_RF),
        width,
        tile=_ACTIVATION_TILE,
        num_warps=4,
    )


def _with_stride(x_RX: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Return a tensor of rows, and how far one row lies from the next."""
    assert x_RX.stride(1) == 1, "the elements of a row lie side by side"
    return x_RX, x_RX.stride(0)


def _with_strides(x: torch.Tensor) -> tuple[torch.Tensor, int, int]:
    """Return a tensor of rows or heads, and how far rows and heads lie from the next."""
    assert x.stride(-1) == 1, "the elements of a row lie side by side"
    return x, x.stride(0), x.stride(1) if x.ndim == 3 else 0


def _norm_tile(width: int) -> dict[str, int]:
    tile = max(_SMALLEST_NORM, triton.next_power_of_2(width))
    return {"tile": tile, "num_warps": _NORM_WARPS[tile]}


@triton.jit
@no_type_check
def _rms_norm(
    x_RH,
    x_row,
    x_head,
    weight_H,
    out_RH,
    out_row,
    out_head,
    eps,
    width: tl.constexpr,
    tile: tl.constexpr,
):
    row, head, at = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, tile)
    x = tl.load(x_RH + row * x_row + head * x_head + at, mask=at < width, other=0.0)
    y = _normed(x.to(tl.float32), weight_H, eps, width, tile)
    tl.store(out_RH + row * out_row + head * out_head + at, y, mask=at < width)


@triton.jit
@no_type_check
def _add_rms_norm(
    x_PRH,
    x_stride,
    x_part,
    residual_RH,
    residual_stride,
    weight_H,
    sum_RH,
    sum_stride,
    out_RH,
    out_stride,
    eps,
    width: tl.constexpr,
    parts: tl.constexpr,
    tile: tl.constexpr,
):
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, tile)
    x_PRH += row * x_stride
    x = tl.load(x_PRH + at, mask=at < width, other=0.0).to(tl.float32)
    for part in tl.static_range(1, parts):
        x += tl.load(x_PRH + part * x_part + at, mask=at < width, other=0.0).to(tl.float32)
    h = tl.load(residual_RH + row * residual_stride + at, mask=at < width, other=0.0)
    h = (h.to(tl.float32) + x).to(sum_RH.dtype.element_ty)
    tl.store(sum_RH + row * sum_stride + at, h, mask=at < width)
    y = _normed(h.to(tl.float32), weight_H, eps, width, tile)
    tl.store(out_RH + row * out_stride + at, y, mask=at < width)


@triton.jit
@no_type_check
def _norm_pair(
    tokens_R,
    embedding_VH,
    embedding_norm_H,
    h_RH,
    h_stride,
    hidden_norm_H,
    pair_R2H,
    pair_stride,
    eps,
    width: tl.constexpr,
    tile: tl.constexpr,
):
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, tile)
    out_H = pair_R2H + row * pair_stride
    if tl.program_id(1) == 0:
        token = tl.load(tokens_R + row).to(tl.int64)
        x = tl.load(embedding_VH + token * width + at, mask=at < width, other=0.0)
        if embedding_norm_H is not None:
            x = _normed(x.to(tl.float32), embedding_norm_H, eps, width, tile)
        tl.store(out_H + at, x, mask=at < width)
    else:
        h = tl.load(h_RH + row * h_stride + at, mask=at < width, other=0.0).to(tl.float32)
        y = _normed(h, hidden_norm_H, eps, width, tile)
        tl.store(out_H + width + at, y, mask=at < width)


@triton.jit
@no_type_check
def _normed(x, weight_H, eps, width: tl.constexpr, tile: tl.constexpr):
    """The norm of a row that is 0 behind its width, in the dtype of the weight."""
    at = tl.arange(0, tile)
    dtype: tl.constexpr = weight_H.dtype.element_ty
    weight = tl.load(weight_H + at, mask=at < width, other=0.0)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / width + eps)
    rounded = (x * scale).to(dtype).to(tl.float32)
    return (weight.to(tl.float32) * rounded).to(dtype)


@triton.jit
@no_type_check
def _silu_mul(
    gate_RF, gate_stride, up_RF, up_stride, out_RF, out_stride, width, tile: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * tile + tl.arange(0, tile)
    gate = tl.load(gate_RF + row * gate_stride + at, mask=at < width).to(tl.float32)
    up = tl.load(up_RF + row * up_stride + at, mask=at < width).to(tl.float32)
    activated = (gate / (1 + tl.exp(-gate))).to(out_RF.dtype.element_ty)
    product = activated.to(tl.float32) * up
    tl.store(out_RF + row * out_stride + at, product.to(out_RF.dtype.element_ty), mask=at < width)
