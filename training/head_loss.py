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

_ROWS_AT_ONCE = 1024
"""Of all steps together. The head's gradient, which is as large as the head, is read once for so
many."""
_WIDE_ROWS_AT_ONCE = 128
"""Whose logits are near while they are float32."""


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
        loss, at_once = weights_SR.new_zeros(()), max(1, _ROWS_AT_ONCE // len(h_SRH))
        for first in range(0, len(targets_RN), at_once):
            now = slice(first, first + at_once)
            h, targets, weights = h_SRH[:, now].bfloat16(), targets_RN[now], weights_SR[:, now]
            wrong_PN = h.flatten(0, 1) @ low_NH.T
            logsums, guesses = _softmax_in_place(wrong_PN)
            wrong_PN.unflatten(0, weights.shape).sub_(targets)
            fits = (h.float() * (targets @ low_NH)).sum(-1)
            loss += (weights * (logsums.view_as(weights) - fits)).sum()
            guesses_SR[:, now] = guesses.view_as(weights)
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
        # In place, for the head's is large; so there is one backward pass only.
        return (grad_SRH * grad).to(ctx.input_dtype), grad_NH.mul_(grad), None, None


def _softmax_in_place(logits_PN: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn logits into probabilities; return log sum exp of each row, and its likeliest token."""
    logsums, guesses = [], []
    for logits in logits_PN.split(_WIDE_ROWS_AT_ONCE):
        probs = logits.float().softmax(-1)
        highest, likeliest = probs.max(-1)
        logsums.append(logits.gather(-1, likeliest[:, None])[:, 0] - highest.log())
        guesses.append(likeliest)
        logits.copy_(probs)
    return torch.cat(logsums), torch.cat(guesses)


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
