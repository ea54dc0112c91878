"""The drafter's maths as launches: taps fused into hidden states, and the layer over them.

Legend: R rows, H hidden, X tapped width.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from draft_service.drafters.eagle3_gpu.weights import GpuWeights
from draft_service.drafters.eagle3_gpu.workspace import Workspace
from kernels.gpu.decoder import Places, decode_layers
from kernels.gpu.elementwise import norm_pair, rms_norm
from kernels.gpu.linear import linear
from kernels.gpu.pages import Pages


class States(NamedTuple):
    """What comes of rows; one norm may lie between the two."""

    fed_RH: torch.Tensor
    """What the next guess is fed."""
    read_RH: torch.Tensor
    """What the head reads."""


def fuse(weights: GpuWeights, taps_RX: torch.Tensor, space: Workspace) -> torch.Tensor:
    """Return the hidden states that rows of taps stand for, which lie in `space`."""
    eps = weights.config.rms_norm_eps
    if weights.tap_norms_W:
        count = len(weights.tap_norms_W)
        chunks = zip(taps_RX.chunk(count, dim=1), space.taps_RX.chunk(count, dim=1), strict=True)
        for norm_W, (tap_RW, normed_RW) in zip(weights.tap_norms_W, chunks, strict=True):
            rms_norm(tap_RW, norm_W, eps, normed_RW)
        taps_RX = space.taps_RX
    if weights.joint_norm_X is not None:
        rms_norm(taps_RX, weights.joint_norm_X, eps, space.taps_RX)
        taps_RX = space.taps_RX
    linear(taps_RX, *weights.fc, space.h_RH, space.layer.scratch)
    return space.h_RH


def run_layer(
    weights: GpuWeights,
    tokens_R: torch.Tensor,
    h_RH: torch.Tensor,
    places: Places,
    pages: Pages,
    space: Workspace,
) -> States:
    """Run rows, over `h_RH`, and write their keys and values where their places say."""
    config = weights.config
    norm_pair(
        tokens_R,
        weights.embedding_VH,
        weights.embedding_norm_H,
        h_RH,
        weights.hidden_norm_H,
        config.rms_norm_eps,
        space.pair_R2H,
    )
    if config.norm_before_residual:
        h_RH.copy_(space.pair_R2H[:, config.hidden_size :])
    # A drafter without a last norm has no use for what it would give.
    norm_H = weights.hidden_norm_H if weights.last_norm_H is None else weights.last_norm_H
    normed_RH = decode_layers(
        h_RH, weights.stack, places, pages, space.layer, norm_H, {}, space.pair_R2H
    )
    return _states(weights, h_RH, normed_RH)


def states_of(weights: GpuWeights, fed_RH: torch.Tensor, space: Workspace) -> States:
    """Return the states of rows that were run in an earlier step."""
    if weights.last_norm_H is None or weights.config.norm_output:
        return States(fed_RH, fed_RH)
    normed_RH = space.layer.normed_RH
    rms_norm(fed_RH, weights.last_norm_H, weights.config.rms_norm_eps, normed_RH)
    return States(fed_RH, normed_RH)


def _states(weights: GpuWeights, h_RH: torch.Tensor, normed_RH: torch.Tensor) -> States:
    if weights.last_norm_H is None:
        return States(h_RH, h_RH)
    return States(normed_RH if weights.config.norm_output else h_RH, normed_RH)
