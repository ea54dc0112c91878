"""Refuses, on a CPU, what cannot be captured as a CUDA graph or would not be there in its replay.

A graph keeps launches, addresses and scalars. So a captured step waits for nothing, copies nothing
to or from the host, has no shape that depends on data, draws no random numbers of torch's, and
takes no more memory than it was granted. torch has two doors: operations are seen when they are
dispatched; `tolist`, `numpy` and their like, on CPU tensors, only where they are called.

It does not see a Python number that changes from step to step; `recorded_step` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.kernels.gpu.proofs.quiet_launches import quiet_launches

aten = torch.ops.aten

_WAITS = {aten._local_scalar_dense, aten.is_nonzero, aten.equal, aten.allclose, aten.item}
_DATA_DEPENDENT = {
    *(aten.nonzero, aten.nonzero_numpy, aten.argwhere, aten.masked_select, aten.bincount),
    *(aten._unique, aten._unique2, aten.unique_dim, aten.unique_consecutive),
    *(aten.unique_dim_consecutive, aten.repeat_interleave, aten.combinations),
}
_HOST_DATA = {aten.lift_fresh, aten.lift}
_RESIZES = {aten.resize_, aten.set_, aten.resize_as_}
_INDEXES = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}
_DATA_DEPENDENT_TAGS = {
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
    torch.Tag.cudagraph_unsafe,
}
_HOST_CALLS = {
    *(torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu, torch.Tensor.cuda),
    *(torch.Tensor.item, torch.Tensor.__array__, torch.Tensor.pin_memory),
    *(torch.tensor, torch.as_tensor, torch.from_numpy),
}


class CaptureError(AssertionError):
    """A step did what a graph cannot."""


class CaptureGuard:
    """Within it, a step that takes more than `most_bytes` of memory or leaves the device fails."""

    def __init__(self, most_bytes: int = 0) -> None:
        self._dispatch = _Dispatched(most_bytes)
        self._stack = ExitStack()

    @property
    def num_bytes(self) -> int:
        """How much memory was taken so far."""
        return self._dispatch.num_bytes

    def __enter__(self) -> CaptureGuard:
        for mode in (quiet_launches(), _Called(), self._dispatch):
            self._stack.enter_context(mode)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)


class _Called(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _HOST_CALLS:
            raise CaptureError(f"{func.__name__} goes to the host")
        devices = [a for a in (*args[1:], *kwargs.values()) if isinstance(a, str | torch.device)]
        if func is torch.Tensor.to and devices:
            raise CaptureError(f"copy to {devices[0]}")
        return func(*args, **kwargs)


class _Dispatched(TorchDispatchMode):
    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self.num_bytes = 0
        self._most_bytes = most_bytes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if refusal := _refusal(func, args):
            raise CaptureError(f"{func}: {refusal}")
        there = _storages((args, kwargs))
        out = func(*args, **kwargs)
        new = {key: size for key, size in _storages(out).items() if key not in there}
        self.num_bytes += sum(new.values())
        if self.num_bytes > self._most_bytes:
            raise CaptureError(
                f"{func}: {self.num_bytes} bytes are taken, {self._most_bytes} granted"
            )
        return out


def _refusal(func: Any, args: Sequence[Any]) -> str:
    """Return why an operation cannot be captured; empty if it can."""
    packet = func.overloadpacket
    indexes_by_number = packet in _INDEXES and not _indexes_by_truth(args)
    depends = packet in _DATA_DEPENDENT or bool(_DATA_DEPENDENT_TAGS.intersection(func.tags))
    reasons = {
        "waits for the device": packet in _WAITS,
        "the shape depends on data": depends and not indexes_by_number,
        "data of the host": packet in _HOST_DATA,
        "memory is resized": packet in _RESIZES,
        "an index of truth values": packet in _INDEXES and not indexes_by_number,
        "torch's random numbers": torch.Tag.nondeterministic_seeded in func.tags,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _indexes_by_truth(args: Sequence[Any]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])


def _storages(tree: Any) -> dict[int, int]:
    """Return the bytes of each piece of memory that tensors of a tree lie in."""
    storages = [x.untyped_storage() for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]
    return {storage._cdata: storage.nbytes() for storage in storages}
