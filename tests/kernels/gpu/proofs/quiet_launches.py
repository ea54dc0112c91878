"""Interpreted launches as one event each: what the interpreter does inside is not the step's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from triton.runtime.interpreter import InterpretedFunction

OnLaunch = Callable[[Callable[[], object], str, tuple[Any, ...]], None]


@contextmanager
def quiet_launches(on_launch: OnLaunch | None = None) -> Iterator[None]:
    """Hide what is inside of launches from torch's modes.

    `on_launch` is told of each: how to do it again, the kernel's name, its arguments and grid.
    """
    run = InterpretedFunction.run

    def run_quietly(kernel: InterpretedFunction, *args: Any, grid: Any, **kwargs: Any) -> None:
        if callable(grid):
            grid = grid(dict(zip(kernel.arg_names, args, strict=False)) | kwargs)

        def launch() -> None:
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                run(kernel, *args, grid=grid, **kwargs)

        if on_launch is not None:
            on_launch(launch, kernel.__name__, (*args, *kwargs.values(), grid))
        launch()

    InterpretedFunction.run = run_quietly
    try:
        yield
    finally:
        InterpretedFunction.run = run
