"""The capture guard refuses each planted sin, and lets pass what a graph can keep."""

import pytest
import torch
import torch.nn.functional as F

from kernels.gpu import elementwise
from tests.kernels.gpu.proofs.capture_guard import CaptureError, CaptureGuard

SINS = {
    "item": lambda x: x * x[0, 0].item(),
    "branch on data": lambda x: x + 1 if (x > 0).any() else x,
    "slice by data": lambda x: x[: int(x.abs().sum()) % 3 + 1],
    "index by a scalar tensor": lambda x: x[x.argmax() % 4],
    "nonzero": torch.nonzero,
    "where": lambda x: torch.where(x > 0)[0],
    "index of truth values": lambda x: x[x > 0],
    "put by truth values": lambda x: x.clone().index_put_((x > 0,), x.sum()),
    "put values by truth values": lambda x: x.index_put_((x > 0,), x[0, 0]),
    "tolist": lambda x: len(x.tolist()),
    "numpy": lambda x: x.numpy().sum(),
    "cpu": lambda x: x.cpu() + 1,
    "to a device": lambda x: x.to("cpu") + 1,
    "to a device by name": lambda x: x.to(device=torch.device("cpu")),
    "a tensor of numbers": lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "a tensor of a list": lambda x: x + torch.as_tensor([1.0, 2.0, 3.0, 4.0]),
    "repeat by data": lambda x: torch.repeat_interleave(x[:, 0], (x[:, 0] > 0).long()),
    "masked select": lambda x: torch.masked_select(x, x > 0),
    "unique": torch.unique,
    "bincount": lambda x: torch.bincount((x > 0).long().view(-1)),
    "equal": lambda x: x if torch.equal(x, x + 1) else -x,
    "resize": lambda x: x.clone().resize_(2, 2),
    "random numbers": torch.rand_like,
    "multinomial": lambda x: torch.multinomial(x.softmax(-1), 1),
}
FINE = {
    "where": lambda x: torch.where(x > 0, x, -x),
    "gather": lambda x: x.gather(1, x.argsort(1)),
    "topk": lambda x: x.topk(2).values.cumsum(-1),
    "index of numbers": lambda x: x[torch.arange(2, device=x.device)],
    "put by numbers": lambda x: x.index_put_((torch.arange(2, device=x.device),), x[2:].clone()),
    "masked fill": lambda x: x.masked_fill(x > 0, 0.0),
    "scatter": lambda x: torch.zeros_like(x).scatter_(1, x.argmax(1, keepdim=True), 1.0),
    "zero": lambda x: x.zero_(),
    "full": lambda x: x + torch.full((4,), 2.0, device=x.device),
    "another dtype": lambda x: x.to(torch.bfloat16),
    "embedding": lambda x: F.embedding(x.argmax(1), x),
    "select by a number": lambda x: x[1].add_(x[:, 2]),
}


@pytest.mark.parametrize("sin", SINS)
def test_what_a_graph_cannot_keep_is_refused(sin):
    with CaptureGuard(most_bytes=2**20), pytest.raises(CaptureError):
        SINS[sin](torch.randn(4, 4))


@pytest.mark.parametrize("idiom", FINE)
def test_what_a_graph_can_keep_passes(idiom):
    x = torch.randn(4, 4)
    with CaptureGuard(most_bytes=2**20):
        FINE[idiom](x)


def test_memory_is_counted_and_refused_beyond_the_grant():
    x = torch.randn(4, 4)
    with CaptureGuard(most_bytes=3 * x.nbytes) as guard:
        torch.mul(x, 2, out=x)
        assert guard.num_bytes == 0
        y = x + 1
        y.view(2, 8).add_(1)
        assert guard.num_bytes == x.nbytes
        with pytest.raises(CaptureError, match="granted"):
            torch.cat((x, x, x))


def test_what_the_interpreter_does_inside_is_not_the_steps():
    """It sets storages and copies; a real launch does neither."""
    x_RH, weight_H, out_RH = torch.randn(3, 8), torch.randn(8), torch.empty(3, 8)
    with CaptureGuard():
        elementwise.rms_norm(x_RH, weight_H, 1e-6, out_RH)
    assert out_RH.isfinite().all()


def test_afterwards_everything_is_allowed_again():
    with CaptureGuard(), pytest.raises(CaptureError):
        torch.zeros(1).item()
    assert torch.zeros(1).item() == 0
