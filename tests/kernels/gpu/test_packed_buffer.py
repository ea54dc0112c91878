"""Pieces of one memory: each is a tensor of its own, and all travel together."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.gpu.packed_buffer import PackedBuffer
from kernels.gpu.packed_memory import Piece

CPU = torch.device("cpu")
DTYPES = torch.int64, torch.int32, torch.bfloat16, torch.float32, torch.uint8
PIECES = st.lists(
    st.builds(Piece, st.sampled_from(DTYPES), st.lists(st.integers(0, 5), min_size=1, max_size=3)),
    max_size=6,
)


def as_asked(piece):
    return piece.dtype, list(piece.shape)


@given(PIECES)
def test_what_the_host_writes_is_on_the_device_after_an_upload(pieces):
    """Every piece is as it was asked for, where 16-byte loads find it, and lies on no other."""
    buffer = PackedBuffer(pieces, CPU)
    for number, piece in enumerate(buffer.on_host, 1):
        piece.fill_(number)
    assert not buffer.memory.any()
    buffer.upload()
    for number, (piece, asked) in enumerate(zip(buffer.on_device, pieces, strict=True), 1):
        assert (piece.dtype, list(piece.shape)) == as_asked(asked)
        assert (piece == number).all()
        assert (piece.data_ptr() - buffer.memory.data_ptr()) % 16 == 0


@given(PIECES)
def test_what_the_device_writes_is_on_the_host_after_a_download(pieces):
    buffer = PackedBuffer(pieces, CPU)
    for number, piece in enumerate(buffer.on_device, 1):
        piece.fill_(number)
    buffer.download()
    for number, piece in enumerate(buffer.on_host, 1):
        assert (piece == number).all()
