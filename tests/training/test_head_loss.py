"""The head's loss: what autograd says, without keeping the logits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from training.head_loss import head_loss


def plain(h, head, targets, weights):
    logprobs = (h.bfloat16() @ head.bfloat16().T).float().log_softmax(-1)
    return -(weights * (targets.float() * logprobs).sum(-1)).sum()


@settings(max_examples=10)
@given(steps=st.integers(1, 4), rows=st.sampled_from([1, 255, 256, 600]), seed=st.integers(0, 99))
def test_loss_and_gradients_are_autograds(steps, rows, seed):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    h, head = draw(steps, rows, 24).requires_grad_(), draw(40, 24).requires_grad_()
    targets, weights = draw(rows, 40).softmax(-1).bfloat16(), draw(steps, rows).abs()
    losses = plain(h, head, targets, weights)
    expected = torch.autograd.grad(losses, (h, head))
    loss, guesses = head_loss(h, head, targets, weights)
    found = torch.autograd.grad(loss, (h, head))
    logits = h.bfloat16() @ head.bfloat16().T
    assert torch.equal(guesses, logits.float().log_softmax(-1).argmax(-1))
    # Both round gradients to bf16 at some point: a few steps of 2^-8 of the largest.
    for one, other in zip(found, expected, strict=True):
        assert float((one - other).abs().max()) <= 2**-6 * float(other.abs().max())
    # The logits are rounded, and so are targets, whose sum then differs from 1 by as much.
    assert loss.item() == pytest.approx(losses.item(), rel=2**-7)


def test_a_row_without_weight_teaches_nothing():
    h, head = torch.randn(1, 2, 8, requires_grad=True), torch.randn(5, 8)
    targets = torch.full((2, 5), 0.2).bfloat16()
    loss, _ = head_loss(h, head, targets, torch.tensor([[1.0, 0.0]]))
    loss.backward()
    assert h.grad[0, 0].abs().max() > 0
    assert h.grad[0, 1].abs().max() == 0
