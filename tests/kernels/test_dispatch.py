"""An op runs its reference until something faster is registered for a device."""

import torch

from kernels.dispatch import Op


def doubled(x, *, plus=0):
    """Twice x."""
    return 2 * x + plus


def tripled(x, *, plus=0):
    return 3 * x + plus


def test_the_reference_runs_where_nothing_was_registered():
    op = Op(doubled)
    op.register("meta", torch.int64, tripled)
    assert op(torch.tensor(3), plus=1) == 7


def test_device_and_dtype_of_the_first_argument_pick():
    op = Op(doubled)
    op.register("cpu", torch.int64, tripled)
    assert op(torch.tensor(3), plus=1) == 10
    assert op(torch.tensor(3.0), plus=1) == 7


def test_what_was_registered_can_be_taken_back():
    op = Op(doubled)
    op.register("cpu", torch.int64, tripled)
    op.unregister("cpu", torch.int64)
    op.unregister("cpu", torch.float32)
    assert op(torch.tensor(3)) == 6


def test_the_reference_stays_at_hand():
    op = Op(doubled)
    op.register("cpu", torch.int64, tripled)
    assert op.reference(torch.tensor(3)) == 6


def test_an_op_is_named_and_described_as_its_reference_is():
    op = Op(doubled)
    assert (op.__name__, op.__doc__) == ("doubled", "Twice x.")
