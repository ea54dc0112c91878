"""A model, on a CPU, of a step that is captured once and replayed.

Recording keeps every operation of torch and every launch with the tensors and numbers it used.
A replay does the same operations with the same numbers; what was allocated keeps its address, so
the next operation finds there what this one left. What Python does between operations is gone, as
it is from a graph: a counter, a branch, a new tensor under an old name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernels.gpu.graphs import Run
from tests.kernels.gpu.proofs.memory_guard import as_bytes
from tests.kernels.gpu.proofs.quiet_launches import quiet_launches

Buffers = Mapping[str, torch.Tensor]


class ReplayError(AssertionError):
    """A replay is not the step."""


@dataclass(frozen=True)
class StaticStep:
    """A step, and where it finds and leaves what it is given and gives: buffers that stay."""

    run: Callable[[], object]
    buffers: Callable[[], Buffers]


@dataclass(frozen=True)
class _Event:
    again: Callable[[], None]
    name: str
    args: tuple[Any, ...]


class RecordedStep:
    """Records what runs within it."""

    def __init__(self) -> None:
        self._events: list[_Event] = []
        self._stack = ExitStack()

    def __enter__(self) -> RecordedStep:
        self._stack.enter_context(quiet_launches(self._note))
        self._stack.enter_context(_Operations(self._note))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def replay(self) -> None:
        """Do everything again, as it was recorded."""
        for event in self._events:
            event.again()

    def plan(self, buffers: Buffers) -> list[tuple[str, tuple[Any, ...]]]:
        """Return what was done to what: buffers by name, other tensors by their first use.

        Two steps of one plan are one graph.
        """
        names = {_memory(buffer): name for name, buffer in buffers.items()}

        def described(arg: Any) -> Any:
            if not isinstance(arg, torch.Tensor):
                return arg
            name = names.setdefault(_memory(arg), f"%{len(names)}")
            return name, arg.storage_offset(), arg.shape, arg.stride(), arg.dtype

        return [
            (event.name, tuple(described(arg) for arg in tree_leaves(event.args)))
            for event in self._events
        ]

    def _note(self, again: Callable[[], None], name: str, args: tuple[Any, ...]) -> None:
        self._events.append(_Event(again, name, args))


def recorded(run: Run) -> Run:
    """Capture what was run before, in place of a device; return the replay."""
    with RecordedStep() as record:
        run()
    return record.replay


class _Operations(TorchDispatchMode):
    def __init__(self, note: Callable[[Callable[[], None], str, tuple[Any, ...]], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        self._note(lambda: _put(func(*args, **kwargs), out), str(func), (args, kwargs))
        return out


def _put(new: Any, recorded: Any) -> None:
    """Leave results where they were recorded: what was allocated keeps its address."""
    for target, source in zip(tree_leaves(recorded), tree_leaves(new), strict=True):
        if isinstance(target, torch.Tensor) and _memory(target) != _memory(source):
            target.copy_(source)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def check_replay(make: Callable[[], StaticStep], inputs: Sequence[Buffers]) -> None:
    """Raise ReplayError unless a replay over new inputs does what the step itself would do.

    `make` makes a step and its buffers, always alike; `inputs` are what some of them are filled
    with, time after time.
    """
    captured, eager = make(), make()
    for step in (captured, eager):
        _fill(step, inputs[0])
        step.run()
    with RecordedStep() as record:
        captured.run()
    eager.run()
    plan = record.plan(captured.buffers())
    for content in inputs:
        addresses = _addresses(eager)
        for step, run in ((captured, record.replay), (eager, eager.run)):
            _fill(step, content)
            run()
        _check_alike(captured.buffers(), eager.buffers())
        if _addresses(eager) != addresses:
            raise ReplayError("a step gave a buffer another address")
    with RecordedStep() as again:
        captured.run()
    if again.plan(captured.buffers()) != plan:
        raise ReplayError("recorded again, the step is another one")


def _fill(step: StaticStep, content: Buffers) -> None:
    for name, values in content.items():
        step.buffers()[name].copy_(values)


def _addresses(step: StaticStep) -> dict[str, int]:
    return {name: buffer.data_ptr() for name, buffer in step.buffers().items()}


def _check_alike(replayed: Buffers, eager: Buffers) -> None:
    for name, buffer in replayed.items():
        if not torch.equal(as_bytes(buffer), as_bytes(eager[name])):
            raise ReplayError(f"{name} is another one after a replay")
