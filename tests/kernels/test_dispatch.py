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
    op.register("meta", tripled)
    assert op(torch.tensor(3), plus=1) == 7


def test_the_device_of_the_first_argument_picks():
    op = Op(doubled)
    op.register("cpu", tripled)
    assert op(torch.tensor(3), plus=1) == 10


def test_the_reference_stays_at_hand():
    op = Op(doubled)
    op.register("cpu", tripled)
    assert op.reference(torch.tensor(3)) == 6


def test_an_op_is_named_and_described_as_its_reference_is():
    op = Op(doubled)
    assert (op.__name__, op.__doc__) == ("doubled", "Twice x.")
