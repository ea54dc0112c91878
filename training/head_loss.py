"""Cross entropy of a large head against soft targets, without keeping the logits.

Logits of a whole batch would be read from memory again and again: 8,192 for every row and step. So
the gradient is computed in the forward pass, for some rows at a time, while their logits are near.

Legend: R rows, H hidden, N draft vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch

_ROWS_AT_ONCE = 256


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        h_RH: torch.Tensor,
        head_NH: torch.Tensor,
        targets_RN: torch.Tensor,
        weights_R: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        low_NH = head_NH.bfloat16()
        grad_NH = torch.zeros_like(head_NH)
        grads_RH, guesses, loss = [], [], h_RH.new_zeros((), dtype=torch.float32)
        for h, targets, weights in zip(
            h_RH.bfloat16().split(_ROWS_AT_ONCE),
            targets_RN.split(_ROWS_AT_ONCE),
            weights_R.split(_ROWS_AT_ONCE),
            strict=True,
        ):
            logprobs = (h @ low_NH.T).float().log_softmax(-1)
            loss = loss - (weights * (targets * logprobs).sum(-1)).sum()
            guesses.append(logprobs.argmax(-1))
            grad = ((logprobs.exp() - targets) * weights[:, None]).bfloat16()
            grads_RH.append(grad @ low_NH)
            grad_NH += grad.T @ h
        ctx.save_for_backward(torch.cat(grads_RH), grad_NH)
        ctx.input_dtype = h_RH.dtype
        guesses_R = torch.cat(guesses)
        ctx.mark_non_differentiable(guesses_R)
        return loss, guesses_R

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> tuple[Any, ...]:
        grad_RH, grad_NH = ctx.saved_tensors
        return (grad_RH * grad).to(ctx.input_dtype), grad_NH * grad, None, None


def head_loss(
    h_RH: torch.Tensor, head_NH: torch.Tensor, targets_RN: torch.Tensor, weights_R: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sum_r w_r * H(targets_r, softmax(head h_r)), and the likeliest draft token a row.

    Targets are probabilities; their rows sum to 1. Products are computed in bfloat16.
    """
    return _HeadLoss.apply(  # type: ignore[no-untyped-call]
        h_RH, head_NH, targets_RN, weights_R
    )
