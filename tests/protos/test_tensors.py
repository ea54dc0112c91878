"""Tensors cross the wire bit by bit; what does not add up is refused before it costs anything."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protos import speculation_pb2 as pb
from protos import tensors

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = st.lists(st.integers(0, 4), max_size=tensors.MAX_DIMS).map(tuple)


def across(tensor):
    """Send a tensor over the wire."""
    sent = tensors.to_proto(tensor).SerializeToString()
    return tensors.from_proto(pb.Tensor.FromString(sent))


def bits(tensor):
    """The bytes of a tensor: a NaN equals itself, -0 is not 0."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist()


@st.composite
def any_bits(draw):
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(SHAPES)
    size = math.prod(shape) * dtype.itemsize
    payload = bytearray(draw(st.binary(min_size=size, max_size=size)))
    flat = torch.frombuffer(payload, dtype=dtype) if payload else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)


@given(any_bits())
def test_a_tensor_arrives_bit_by_bit(tensor):
    """Any dtype, any bits (NaN, infinities, signed zeros), no rows, no dimensions."""
    arrived = across(tensor)

    assert (arrived.dtype, arrived.shape) == (tensor.dtype, tensor.shape)
    assert bits(arrived) == bits(tensor)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_view_arrives_as_what_it_shows(dtype):
    """Neither order in memory nor gradients matter."""
    view = torch.arange(24, dtype=dtype).requires_grad_().reshape(4, 6).T[::2]

    assert torch.equal(across(view), view)


def test_what_arrived_may_be_written_to():
    message = tensors.to_proto(torch.ones(3))

    tensors.from_proto(message).fill_(7)

    assert torch.equal(tensors.from_proto(message), torch.ones(3))


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_of_wire_and_torch_are_pairs(dtype):
    assert tensors.torch_dtype(tensors.wire_dtype(dtype)) == dtype


def test_a_dtype_that_the_wire_does_not_know_is_refused():
    with pytest.raises(ValueError, match=r"torch.int64.*torch.float32, torch.bfloat16"):
        tensors.to_proto(torch.zeros(2, dtype=torch.int64))


@pytest.fixture
def nothing_is_allocated(monkeypatch):
    """Fail at once if anything asks torch for memory."""

    def forbidden(*args, **kwargs):
        raise AssertionError(f"allocated {args}")

    for name in ("empty", "zeros", "frombuffer"):
        monkeypatch.setattr(torch, name, forbidden)


@pytest.mark.usefixtures("nothing_is_allocated")
class TestHostileTensors:
    """Refused with ValueError before anything is allocated."""

    @pytest.mark.parametrize("dtype", [pb.DTYPE_UNSPECIFIED, 4, 99])
    def test_an_unknown_dtype(self, dtype):
        with pytest.raises(ValueError, match=f"unknown tensor dtype {dtype}"):
            tensors.from_proto(pb.Tensor(dtype=dtype, shape=[1], inline=bytes(4)))

    def test_too_many_dimensions(self):
        with pytest.raises(ValueError, match="at most 4 dimensions, got 5"):
            tensors.from_proto(pb.Tensor(dtype=pb.DTYPE_F32, shape=[1] * 5, inline=bytes(4)))

    @pytest.mark.parametrize(
        ("shape", "size"),
        [((2, 3), 23), ((2, 3), 25), ((2, 3), 0), ((), 0), ((), 8), ((0, 5), 4)],
    )
    def test_a_payload_of_another_size(self, shape, size):
        expected = 4 * math.prod(shape)

        with pytest.raises(ValueError, match=f"takes {expected} bytes, got {size}"):
            tensors.from_proto(pb.Tensor(dtype=pb.DTYPE_F32, shape=shape, inline=bytes(size)))

    @pytest.mark.parametrize(
        "shape",
        [
            (2**40, 2**20),
            # Products that are 0 or small if they are computed with 64 bits.
            (2**32, 2**32),
            (2**63, 2),
            (2**62, 2, 2, 2),
            (2**64 - 1, 2**64 - 1, 2**64 - 1, 2**64 - 1),
            # No elements at all, but sizes that torch cannot express.
            (0, 2**63),
            (2**64 - 1, 0),
            (0, 2**62, 4),
            (2**32, 0, 2**32),
        ],
    )
    def test_a_shape_that_no_memory_holds(self, shape):
        with pytest.raises(ValueError, match=str(shape[0])):
            tensors.from_proto(pb.Tensor(dtype=pb.DTYPE_F32, shape=shape))
