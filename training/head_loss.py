"""Cross entropy of a large head against soft targets, without keeping the logits.

    p = softmax(head h)
    loss = sum w (log sum exp(head h) - h . (targets head))
    its gradients: w (p - targets) head, and the same with h

Logits of a whole batch would be read from memory again and again: 8,192 for every row and step. So
the gradient is computed in the forward pass, for some rows at a time, while their logits are near;
rows of all steps together, for they have the same targets.

Legend: S steps, R rows, H hidden, N draft vocabulary, P rows of all steps that are taken at once.
"""

from __future__ import annotations

from typing import Any

import torch

_LOGITS_AT_ONCE = 256
"""Rows whose logits lie near at once, those of all steps together."""


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        h_SRH: torch.Tensor,
        head_NH: torch.Tensor,
        targets_RN: torch.Tensor,
        weights_SR: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        low_NH = head_NH.bfloat16()
        grad_NH = torch.zeros_like(head_NH)
        grad_SRH = torch.empty_like(h_SRH, dtype=torch.bfloat16)
        guesses_SR = torch.empty_like(weights_SR, dtype=torch.long)
        loss, at_once = weights_SR.new_zeros(()), max(1, _LOGITS_AT_ONCE // len(h_SRH))
        for first in range(0, len(targets_RN), at_once):
            now = slice(first, first + at_once)
            h, targets, weights = h_SRH[:, now].bfloat16(), targets_RN[now], weights_SR[:, now]
            probs_PN, logsums, guesses = _probs(h.flatten(0, 1), low_NH)
            fits = h.float() * (targets @ low_NH)
            loss += (weights * (logsums.view_as(weights) - fits.sum(-1))).sum()
            guesses_SR[:, now] = guesses.view_as(weights)
            wrong_PN = probs_PN.bfloat16()
            wrong_PN.unflatten(0, weights.shape).sub_(targets)
            weights_SR1 = weights[..., None]
            grad_SRH[:, now] = (wrong_PN @ low_NH).view_as(h) * weights_SR1
            grad_NH += wrong_PN.T @ (h * weights_SR1).bfloat16().flatten(0, 1)
        ctx.save_for_backward(grad_SRH, grad_NH)
        ctx.input_dtype = h_SRH.dtype
        ctx.mark_non_differentiable(guesses_SR)
        return loss, guesses_SR

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> tuple[Any, ...]:
        grad_SRH, grad_NH = ctx.saved_tensors
        return (grad_SRH * grad).to(ctx.input_dtype), grad_NH * grad, None, None


def _probs(
    h_PH: torch.Tensor, head_NH: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return probabilities, the logarithms of their denominators, and the likeliest tokens."""
    logits_PN = h_PH @ head_NH.T
    probs_PN = logits_PN.float().softmax(-1)
    highest_P, guesses_P = probs_PN.max(-1)
    logits_P = logits_PN.gather(-1, guesses_P[:, None])[:, 0]
    return probs_PN, logits_P - highest_P.log(), guesses_P


def head_loss(
    h_SRH: torch.Tensor, head_NH: torch.Tensor, targets_RN: torch.Tensor, weights_SR: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of w_sr * H(targets_r, softmax(head h_sr)), and the likeliest draft tokens.

    The tokens are [S, R]. Targets are probabilities; their rows sum to 1. Products are computed in
    bfloat16.
    """
    return _HeadLoss.apply(  # type: ignore[no-untyped-call]
        h_SRH, head_NH, targets_RN, weights_SR
    )
