"""Steps captured as CUDA graphs: one a bucket, at start or when it is first wanted, then replayed.

    step.run()            launches over buffers that stay; results lie in them
    capture(step.run)     the same launches, as one call

A step of a bucket computes as many rows as the bucket has; what is missing is padding, which every
kernel leaves alone. Graphs share the memory that their steps take, and there is none to speak of:
wrappers allocate nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar

import torch

Run = Callable[[], object]
Capture = Callable[[Run], Run]


class Step(Protocol):
    """Launches over buffers that stay."""

    def clear(self) -> None:
        """Write to the buffers that no row is real: then a run changes nothing."""

    def run(self) -> None:
        """Launch everything, for the rows that the buffers hold."""


B = TypeVar("B", bound=Hashable)
S = TypeVar("S", bound=Step)


class Captured(NamedTuple):
    """What a capture cost."""

    seconds: float
    num_bytes: int


class StepGraphs(Generic[B, S]):
    """The steps of all buckets."""

    def __init__(self, new_step: Callable[[B], S], capture: Capture | None) -> None:
        """`capture` is None where steps are launched one by one, each time."""
        self._new_step = new_step
        self._capture = capture
        self._steps: dict[B, S] = {}
        self._runs: dict[B, Run] = {}

    def prepare(self, buckets: Iterable[B], told: Callable[[B, Captured], None]) -> None:
        """Capture these buckets now, so that nobody waits for it later."""
        for bucket in buckets:
            before, started = _allocated_bytes(), time.perf_counter()
            step = self._step(bucket)
            if self._capture is None:
                self._run_empty(step)
            else:
                self._captured(bucket, self._capture)
            told(bucket, Captured(time.perf_counter() - started, _allocated_bytes() - before))

    def run(self, bucket: B, fill: Callable[[S], None]) -> S:
        """Run the step of a bucket over what `fill` writes to its buffers, and return it.

        A bucket that was not prepared is launched as it is the first time, and captured the second:
        most of those come only once.
        """
        is_new = bucket not in self._steps
        step = self._step(bucket)
        run: Run = step.run
        if self._capture is not None and not is_new:
            run = self._captured(bucket, self._capture)
        fill(step)
        run()
        return step

    def _step(self, bucket: B) -> S:
        if bucket not in self._steps:
            self._steps[bucket] = self._new_step(bucket)
        return self._steps[bucket]

    def _captured(self, bucket: B, capture: Capture) -> Run:
        if bucket not in self._runs:
            step = self._steps[bucket]
            # What a capture runs before must not be done to real rows twice.
            self._run_empty(step)
            self._runs[bucket] = capture(step.run)
        return self._runs[bucket]

    @staticmethod
    def _run_empty(step: S) -> None:
        """Compile and load everything that a step launches."""
        step.clear()
        step.run()


class CudaCapture:
    """Captures into CUDA graphs, all on one stream and in one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Run) -> Run:
        """Capture what was run before; return the replay."""
        self._stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on with other steps meanwhile.
        mode = "thread_local"
        with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode=mode):
            run()
        return graph.replay


def capture_on(device: torch.device, *, enabled: bool) -> Capture | None:
    """Return how steps are captured on a device; None if they are not."""
    return CudaCapture(device) if enabled and device.type == "cuda" else None


def _allocated_bytes() -> int:
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
