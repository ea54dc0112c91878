"""How many launches a step is, counted; and how many are left of them when it is replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import JITFunction

from kernels.gpu.graphs import Capture, Run

_KERNELS: tuple[type[Any], ...] = (JITFunction, InterpretedFunction)


class Launches(NamedTuple):
    """What was launched within a time: kernels, in graphs, and those graphs."""

    kernels: int
    graphs: int


class CountingCapture:
    """A capture that knows how many launches each of its graphs stands for."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._replayed: list[int] = []

    def __call__(self, run: Run) -> Run:
        """Capture what was run before; return the replay, which is noted each time."""
        with _counted() as count:
            replay = self._capture(run)
        kernels = count.launches

        def replayed() -> None:
            self._replayed.append(kernels)
            replay()

        return replayed

    def take(self) -> Launches:
        """Return what was replayed since this was called last."""
        replayed, self._replayed = self._replayed, []
        return Launches(sum(replayed), len(replayed))


class _Count(TorchDispatchMode):
    """Counts kernels of Triton, and operations of torch that write into what they are given.

    Others launch nothing: steps allocate no memory, so what is left of them are views.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.launches = 0
        self._in_kernel = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # An interpreted kernel is made of operations of torch; it is one launch all the same.
        self.launches += func._schema.is_mutable and not self._in_kernel
        return func(*args, **(kwargs or {}))

    def counting(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Return what runs a kernel, and counts it."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.launches += 1
            self._in_kernel = True
            try:
                return run(*args, **kwargs)
            finally:
                self._in_kernel = False

        return counted


@contextmanager
def _counted() -> Iterator[_Count]:
    """Count what is launched within it."""
    count, runs = _Count(), [kind.run for kind in _KERNELS]
    for kind, run in zip(_KERNELS, runs, strict=True):
        kind.run = count.counting(run)
    try:
        with count:
            yield count
    finally:
        for kind, run in zip(_KERNELS, runs, strict=True):
            kind.run = run
