"""An op: one formula, one reference, and for some devices a faster implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, Generic, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")
Implementation = Callable[Concatenate[torch.Tensor, P], R]


class Op(Generic[P, R]):
    """A function whose first argument is a tensor, and whose device picks the implementation.

    The reference is the definition: it runs wherever nothing faster was registered, and every
    other implementation is tested against it on odd shapes.
    """

    def __init__(self, reference: Implementation[P, R]) -> None:
        self.reference = reference
        self._by_device: dict[str, Implementation[P, R]] = {}
        self.__doc__ = reference.__doc__
        self.__name__ = reference.__name__

    def register(self, device_type: str, implementation: Implementation[P, R]) -> None:
        """Use `implementation` for tensors of a device type ("cpu", "cuda") from now on."""
        self._by_device[device_type] = implementation

    def __call__(self, x: torch.Tensor, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._by_device.get(x.device.type, self.reference)(x, *args, **kwargs)
