"""What a target takes of a GPU's memory, as far as its tensors tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import NamedTuple

import torch


class DeviceBytes(NamedTuple):
    """Bytes of what stays on a device while a target serves. Graphs of steps take more."""

    weights: int
    pages: int
    buffers: int


def num_bytes(*parts: object) -> int:
    """Return how many bytes all tensors of some data have, those of shared memory once."""
    storages = {}
    for tensor in _tensors(parts):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _tensors(part: object) -> Iterator[torch.Tensor]:
    """Yield the tensors of dataclasses and tuples, however deep they lie."""
    if isinstance(part, torch.Tensor):
        yield part
    else:
        for inner in _inner(part):
            yield from _tensors(inner)


def _inner(part: object) -> Iterable[object]:
    if is_dataclass(part):
        return [getattr(part, field.name) for field in fields(part)]
    return part if isinstance(part, tuple) else ()
