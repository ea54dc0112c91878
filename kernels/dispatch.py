"""An op: one formula, one reference, and for some tensors a faster implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, Generic, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")
Implementation = Callable[Concatenate[torch.Tensor, P], R]


class Op(Generic[P, R]):
    """A function whose first argument is a tensor, whose device and dtype pick the implementation.

    The reference is the definition: it runs wherever nothing faster was registered, and every
    other implementation is tested against it on odd shapes.
    """

    def __init__(self, reference: Implementation[P, R]) -> None:
        self.reference = reference
        self._faster: dict[tuple[str, torch.dtype], Implementation[P, R]] = {}
        self.__doc__ = reference.__doc__
        self.__name__ = reference.__name__

    def register(
        self, device_type: str, dtype: torch.dtype, implementation: Implementation[P, R]
    ) -> None:
        """Use `implementation` for tensors of a device type ("cpu", "cuda") and dtype."""
        self._faster[device_type, dtype] = implementation

    def unregister(self, device_type: str, dtype: torch.dtype) -> None:
        """Use the reference again."""
        self._faster.pop((device_type, dtype), None)

    def __call__(self, x: torch.Tensor, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._faster.get((x.device.type, x.dtype), self.reference)(x, *args, **kwargs)
