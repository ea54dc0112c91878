"""Watches what interpreted kernels read and write.

The interpreter runs programs one after the other on memory that is there, so it shows none of: an
access outside the tensor a pointer came from, two programs that write one address, a program that
reads what another one writes. On a GPU each of them is a fault or a race.

A pointer carries the number of its tensor in the 16 bits that addresses do not use, so an access
that strays into another tensor is found, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from triton.runtime import interpreter
from triton.runtime.interpreter import GridExecutor, TensorHandle

from tests.kernels.gpu.proofs.interpreted_floats import FloatBuilder

ORDERS = ("forward", "reverse")
_TAG_BIT = np.uint64(48)
_ADDRESS = np.uint64(2**48 - 1)


class MemoryFaultError(AssertionError):
    """A kernel touched what is not its own."""


class _Accesses(NamedTuple):
    """Addresses that one program used at once."""

    addresses: np.ndarray
    program: int


class _Extent:
    """Which addresses are a tensor's: of a view not what lies between its rows."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.element_size()
        dims = zip(tensor.stride(), tensor.shape, strict=True)
        self._dims = sorted(((s * size, n) for s, n in dims if s and n > 1), reverse=True)
        self._start = tensor.data_ptr()
        # What lies side by side, in bytes.
        self._run = size if tensor.numel() else 0
        while self._dims and self._dims[-1][0] == self._run:
            self._run *= self._dims.pop()[1]
        self._end = sum(stride * (n - 1) for stride, n in self._dims) + self._run

    def holds(self, addresses: np.ndarray, num_bytes: int) -> bool:
        """Whether so many bytes at each address are the tensor's."""
        offsets = addresses.astype(np.int64) - self._start
        if (offsets < 0).any() or (offsets + num_bytes > self._end).any():
            return False
        for stride, n in self._dims:
            if (offsets // stride >= n).any():
                return False
            offsets %= stride
        return not self._dims or bool((offsets + num_bytes <= self._run).all())


class _Launch:
    """One launch: the extents of its tensors, and what its programs did."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.extents: list[_Extent] = []
        self.reads: list[_Accesses] = []
        self.writes: list[_Accesses] = []

    def tagged(self, tensor: torch.Tensor) -> int:
        """Return the address of a tensor, marked as one of that tensor."""
        self.extents.append(_Extent(tensor))
        return tensor.data_ptr() | len(self.extents) << int(_TAG_BIT)

    def check_inside(self, pointers: np.ndarray, num_bytes: int, doing: str) -> np.ndarray:
        """Return plain addresses, or raise MemoryFaultError for one that is outside its tensor."""
        addresses, tags = pointers & _ADDRESS, pointers >> _TAG_BIT
        for tag in _different(tags):
            if not 0 < tag <= len(self.extents):
                raise MemoryFaultError(f"{self.name} {doing} at an address that is no tensor's")
            if not self.extents[tag - 1].holds(addresses[tags == tag], num_bytes):
                raise MemoryFaultError(f"{self.name} {doing} outside its tensor number {tag}")
        return addresses

    def check_independent(self) -> None:
        """Raise MemoryFaultError if programs meet at an address that one of them writes."""
        if not self.writes:
            return
        written, writers = self._written()
        if (np.diff(written) == 0).any():
            raise MemoryFaultError(f"{self.name}: two programs write one address")
        for addresses, reader in self.reads:
            read = addresses[(addresses >= written[0]) & (addresses <= written[-1])]
            at = np.searchsorted(written, read)
            if ((written[at] == read) & (writers[at] != reader)).any():
                raise MemoryFaultError(f"{self.name}: a program reads what another one writes")

    def _written(self) -> tuple[np.ndarray, np.ndarray]:
        """Return sorted pairs of address and program, each pair once."""
        addresses = np.concatenate([access.addresses for access in self.writes])
        counts = [access.addresses.size for access in self.writes]
        programs = np.repeat([access.program for access in self.writes], counts)
        order = np.lexsort((programs, addresses))
        addresses, programs = addresses[order], programs[order]
        is_new = np.ones(len(addresses), bool)
        is_new[1:] = (np.diff(addresses) != 0) | (np.diff(programs) != 0)
        return addresses[is_new], programs[is_new]


def _different(tags: np.ndarray) -> list[int]:
    """Return the tags that occur; nearly always it is one."""
    if tags.size and (tags == tags.flat[0]).all():
        return [int(tags.flat[0])]
    return np.unique(tags).tolist()


class _GuardedBuilder(FloatBuilder):
    """Checks every access of the launch that is being run."""

    launch: _Launch
    reverse: bool

    def set_grid_idx(self, x: int, y: int, z: int) -> None:
        if self.reverse:
            x, y, z = (n - 1 - i for n, i in zip(self.grid_dim, (x, y, z), strict=True))
        super().set_grid_idx(x, y, z)

    def create_masked_load(self, ptrs: Any, mask: Any, *rest: Any) -> TensorHandle:
        used, plain = self._checked(ptrs, mask, "reads")
        self._note(used, self.launch.reads)
        return super().create_masked_load(plain, mask, *rest)

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        used, plain = self._checked(ptrs, mask, "writes")
        self._note(used, self.launch.writes)
        return super().create_masked_store(plain, value, mask, *rest)

    def create_atomic_rmw(self, op: Any, ptr: Any, value: Any, mask: Any, *rest: Any) -> Any:
        """Atomic additions of many programs to one address are what they are for."""
        plain = self._checked(ptr, mask, "adds")[1]
        return super().create_atomic_rmw(op, plain, value, mask, *rest)

    def _note(self, addresses: np.ndarray, accesses: list[_Accesses]) -> None:
        if addresses.size:
            program = int(np.ravel_multi_index(self.grid_idx, self.grid_dim))
            accesses.append(_Accesses(addresses, program))

    def _checked(self, ptrs: Any, mask: Any, doing: str) -> tuple[np.ndarray, TensorHandle]:
        """Return the addresses that are used, and all of them without tags."""
        used = ptrs.data[np.broadcast_to(mask.data, ptrs.data.shape).astype(bool)]
        num_bytes = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
        addresses = self.launch.check_inside(used, num_bytes, doing)
        return addresses, TensorHandle(ptrs.data & _ADDRESS, ptrs.dtype)


@contextmanager
def memory_guard(order: str = "forward") -> Iterator[None]:
    """Run every launch under guard, its programs in one of `ORDERS`.

    Raises MemoryFaultError; from within a kernel, inside Triton's InterpreterError.
    """
    assert order in ORDERS, order
    builder, call, convert = (
        interpreter.interpreter_builder,
        GridExecutor.__call__,
        interpreter._implicit_cvt,
    )

    def guarded_call(executor: GridExecutor, *args: Any, **kwargs: Any) -> None:
        builder.launch = _Launch(executor.fn.__name__)
        call(executor, *args, **kwargs)
        builder.launch.check_independent()

    def tagging_convert(arg: Any) -> Any:
        converted = convert(arg)
        if isinstance(arg, torch.Tensor):
            converted.handle.data[:] = builder.launch.tagged(arg)
        return converted

    before = builder.__class__
    builder.__class__, builder.reverse = _GuardedBuilder, order == "reverse"
    GridExecutor.__call__, interpreter._implicit_cvt = guarded_call, tagging_convert
    try:
        yield
    finally:
        builder.__class__ = before
        GridExecutor.__call__, interpreter._implicit_cvt = call, convert


def launch_guarded(launch: Callable[[], object], *written: torch.Tensor) -> None:
    """Launch under guard in every order of programs; what is written must have the same bits."""
    before = [tensor.clone() for tensor in written]
    first: list[torch.Tensor] = []
    for order in ORDERS:
        for tensor, content in zip(written, before, strict=True):
            tensor.copy_(content)
        with memory_guard(order):
            launch()
        first = first or [tensor.clone() for tensor in written]
        for tensor, bits in zip(written, first, strict=True):
            if not torch.equal(as_bytes(tensor), as_bytes(bits)):
                raise MemoryFaultError(f"another result in {order} order")


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bytes: NaN equals itself, and 0 is not -0."""
    return tensor.contiguous().flatten().view(torch.uint8)
