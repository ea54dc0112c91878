"""Tensors to bytes and back: dtype, shape, little-endian. The only serialisation in the project.

Sizes are checked with Python integers before anything is allocated: a hostile shape costs nothing.
"""

from __future__ import annotations

import math
import sys

import torch

from protos import speculation_pb2 as pb

assert sys.byteorder == "little", "tensors travel little-endian and are not swapped"

MAX_DIMS = 4
_MAX_ELEMENTS = 2**60
_TORCH_DTYPES: dict[int, torch.dtype] = {
    pb.DTYPE_F32: torch.float32,
    pb.DTYPE_BF16: torch.bfloat16,
    pb.DTYPE_F16: torch.float16,
}
_WIRE_DTYPES = {dtype: wire for wire, dtype in _TORCH_DTYPES.items()}


def wire_dtype(dtype: torch.dtype) -> int:
    """Return the wire's number of a torch dtype, or raise ValueError."""
    if dtype not in _WIRE_DTYPES:
        raise ValueError(f"no wire dtype for {dtype}; known: {', '.join(map(str, _WIRE_DTYPES))}")
    return _WIRE_DTYPES[dtype]


def torch_dtype(dtype: int) -> torch.dtype:
    """Return the torch dtype of a wire dtype, or raise ValueError."""
    if dtype not in _TORCH_DTYPES:
        raise ValueError(f"unknown tensor dtype {dtype} on the wire")
    return _TORCH_DTYPES[dtype]


def to_proto(tensor: torch.Tensor) -> pb.Tensor:
    """Serialise a tensor of any device. One copy, as protobuf takes nothing but `bytes`."""
    # Flattened first: a tensor without dimensions cannot be viewed as bytes.
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    dtype = pb.Dtype.Name(wire_dtype(tensor.dtype))
    return pb.Tensor(dtype=dtype, shape=tensor.shape, inline=flat.numpy().tobytes())


def from_proto(message: pb.Tensor) -> torch.Tensor:
    """Parse a tensor. The result is writable and owns its memory.

    Raises ValueError for an unknown dtype, too many or too large dimensions, or a payload of
    another size.
    """
    dtype, shape = torch_dtype(message.dtype), tuple(message.shape)
    if len(shape) > MAX_DIMS:
        raise ValueError(f"a tensor has at most {MAX_DIMS} dimensions, got {len(shape)}")
    _check_strides(shape)
    payload = message.inline
    expected = math.prod(shape) * dtype.itemsize
    if len(payload) != expected:
        raise ValueError(
            f"a {dtype} tensor of shape {shape} takes {expected} bytes, got {len(payload)}"
        )
    if not payload:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(payload), dtype=dtype).reshape(shape)


def _check_strides(shape: tuple[int, ...]) -> None:
    """Refuse what 64 bits cannot count even if a zero among the sizes asks for no memory."""
    if math.prod(max(size, 1) for size in shape) >= _MAX_ELEMENTS:
        raise ValueError(f"a tensor has fewer than {_MAX_ELEMENTS} elements, got shape {shape}")
