"""How long launches take on a device: replayed, with nothing left in the caches."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.gpu.graphs import CudaCapture

_REPEATS = 15
_FLUSHED_BYTES = 2**30
"""More than any chip's cache, and enough that the host is ahead when the next launch begins."""


@dataclass(frozen=True)
class Clock:
    """A device, and what its memory was measured to do."""

    flushed: torch.Tensor
    capture: CudaCapture
    bytes_per_s: float

    @classmethod
    def on(cls, device: torch.device) -> Clock:
        """Measure how fast memory is copied."""
        flushed = torch.empty(_FLUSHED_BYTES, dtype=torch.uint8, device=device)
        source = torch.empty_like(flushed)
        taken_s = _median_s(lambda: flushed.copy_(source), lambda: None)
        return cls(flushed, CudaCapture(device), 2 * _FLUSHED_BYTES / taken_s)

    def seconds(self, launch: Callable[[], None]) -> float:
        """Return the median time of a launch, replayed from a graph."""
        launch()
        torch.cuda.synchronize()
        replay = self.capture(launch)
        return _median_s(replay, lambda: self.flushed.zero_())


def _median_s(run: Callable[[], object], before: Callable[[], object]) -> float:
    taken = []
    for _ in range(_REPEATS):
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before()
        started.record()
        run()
        ended.record()
        ended.synchronize()
        taken.append(started.elapsed_time(ended) / 1000)
    return statistics.median(taken)
