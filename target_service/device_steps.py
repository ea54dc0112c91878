"""The steps of one device: those of all buckets, each run over what was packed for it.

Where several devices share the layers, each runs the same steps in the same order. One of them
serves, and leads: the others run what it is about to run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernels.gpu.graphs import Capture, Captured, StepGraphs
from kernels.gpu.runtime import on_device
from target_service.buckets import Bucket, Buckets
from target_service.device_step import DeviceStep, StepMemory
from target_service.step_shares import Share

if TYPE_CHECKING:
    # It brings what reads settings, and a check of a device has no settings.
    from target_service.team import Team

Lead = Callable[[Bucket, int], AbstractContextManager[object]]
"""Around what is run for a bucket, with so many bytes of inputs; with none, it is captured."""


@dataclass(frozen=True)
class Place:
    """Where steps run, and how."""

    device: torch.device
    capture: Capture | None = None
    """None where steps are launched one by one."""
    team: Team | None = None
    """The devices that share the layers."""
    lead: Lead = lambda *_: nullcontext()


class DeviceSteps:
    """What a device can run."""

    def __init__(self, memory: StepMemory, place: Place) -> None:
        self._memory = memory
        self._place = place
        limits = memory.work.limits
        self.buckets = Buckets(limits.rows, limits.sessions)
        self._graphs = StepGraphs[Bucket, DeviceStep](
            lambda bucket: DeviceStep(memory, bucket), place.capture
        )

    def prepare(self, bucket: Bucket, told: Callable[[Bucket, Captured], None]) -> None:
        """Capture the step of a bucket, so that no session waits for it; `told` what it cost."""
        with torch.inference_mode(), on_device(self._place.device), self._place.lead(bucket, 0):
            self._graphs.prepare([bucket], told)

    def pack(self, bucket: Bucket, shares: Sequence[Share]) -> int:
        """Describe a step in the host's memory; return in how many bytes."""
        return self._memory.pack(bucket, shares)

    def run(self, bucket: Bucket, num_bytes: int) -> DeviceStep:
        """Run the step that the first bytes describe, and return it."""
        with torch.inference_mode(), on_device(self._place.device):
            with self._place.lead(bucket, num_bytes):
                return self._graphs.run(bucket, lambda step: step.send(num_bytes))
