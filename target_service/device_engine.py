"""The engine of a GPU: a batch goes to the device as one copy, and what it found comes back as one.

It does what `Engine` does; `device_step` is the step itself. Taps are kept in the host's memory.

Legend: K kept rows, N slots, X tapped width (layers * hidden).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from kernels.gpu.graphs import Captured
from kernels.gpu.runtime import check_runnable, on_device
from protos.messages import Verdict, VerifyTimings
from target_service.buckets import Bucket
from target_service.device_buffers import StepLimits
from target_service.device_layers import new_pages_of
from target_service.device_model import DeviceModel
from target_service.device_step import StepMemory
from target_service.device_steps import DeviceSteps, Place
from target_service.device_verdicts import verdicts_of
from target_service.engine import Outcome
from target_service.kept_rows import KeptRows
from target_service.kv_memory import pages_for, slots_of
from target_service.models.target_model import TargetModel
from target_service.session import SPARE_SLOTS, Rows
from target_service.step_shares import Share, shares_of
from target_service.tap_store import TapStore
from target_service.tensor_parallel import slice_model
from target_service.token_lists import MOST_EXTRA_ENTRIES
from target_service.work_buffers import new_work_buffers

if TYPE_CHECKING:
    # They bring what reads settings, and a check of a device has no settings.
    from target_service.config import TargetConfig
    from target_service.team import Team


@dataclass(frozen=True)
class Load:
    """The largest step: rows and sessions; and the longest session, with its tree, in slots."""

    rows: int
    sessions: int
    session_slots: int

    @classmethod
    def of(cls, config: TargetConfig, max_context_len: int) -> Load:
        """Return what a service is to carry."""
        return cls(config.step_rows, config.max_sessions, max_context_len + SPARE_SLOTS)


def new_memory(
    model: TargetModel,
    tap_layers: Sequence[int],
    num_pages: int,
    load: Load,
    device: torch.device,
    team: Team | None = None,
) -> StepMemory:
    """Take a model to a device, or its slice of one, and return all that its steps need there."""
    there, config = _model_on(device, model, load, team), model.config
    list_len = min(config.vocab_size, load.session_slots + MOST_EXTRA_ENTRIES)
    limits = StepLimits(
        rows=load.rows,
        sessions=load.sessions,
        pages=pages_for(load.session_slots),
        entries=min(load.rows, load.sessions) * list_len,
        tap_layers=len(tap_layers),
        hidden=config.hidden_size,
    )
    inputs = None if team is None else team.inputs
    pages = new_pages_of(there.stack, num_pages, device)
    return StepMemory(there, tap_layers, pages, new_work_buffers(there, limits), inputs)


def _model_on(
    device: torch.device, model: TargetModel, load: Load, team: Team | None
) -> DeviceModel:
    if team is None:
        return _on_device(model, device)
    there = _on_device(slice_model(model, team.part), device)
    widest = max(there.hidden, len(there.head.weight_NK))
    return there.shared(team.gather(load.rows * widest, device))


def _on_device(model: TargetModel, device: torch.device) -> DeviceModel:
    try:
        return DeviceModel.of(model, device)
    except torch.OutOfMemoryError as error:
        message = f"device is {str(device)!r}, which has no memory for all weights: {error}"
        raise ValueError(message) from error


class DeviceEngine:
    """A model on a GPU, the layers it is tapped at, and the cache of all sessions."""

    def __init__(
        self,
        model: TargetModel,
        tap_layers: Sequence[int],
        num_pages: int,
        load: Load,
        place: Place,
    ) -> None:
        """Raises ValueError for what kernels for GPUs cannot do.

        That is other weights than bfloat16, but for experts of 4 bits, a layer that is tapped
        twice, a device that is none or that they were not made for.
        """
        check_runnable(place.device)
        if len(set(tap_layers)) < len(tap_layers):
            raise ValueError(f"tap_layers must be different on a GPU, got {tuple(tap_layers)}")
        self._device = place.device
        with on_device(place.device):
            memory = new_memory(model, tap_layers, num_pages, load, place.device, place.team)
        self.num_bytes = memory.num_bytes()
        self._steps = DeviceSteps(memory, place)
        width = len(tap_layers) * model.config.hidden_size
        self._taps = TapStore(num_pages, width, torch.bfloat16)

    def prepare(self, told: Callable[[Bucket, Captured], None]) -> None:
        """Capture the usual steps, so that no session waits for it; `told` what each cost."""
        for bucket in self._steps.buckets.usual():
            self._steps.prepare(bucket, told)

    @torch.inference_mode()
    def step(self, batch: Sequence[Rows]) -> list[Outcome]:
        """Compute the rows of all sessions; accept what agrees of their trees, and compact them."""
        started = time.perf_counter_ns()
        shares = shares_of(batch)
        bucket = self._bucket_of(shares)
        num_bytes = self._steps.pack(bucket, shares)
        step = self._steps.run(bucket, num_bytes)
        with on_device(self._device):
            found = step.read(sum(share.num_taps for share in shares))
            forwarded = time.perf_counter_ns()
            verdicts = verdicts_of(shares, found, step.logits_MV)
        taps = [
            self._keep(share, verdict, found.taps_RLH)
            for share, verdict in zip(shares, verdicts, strict=True)
        ]
        timings = VerifyTimings(
            forward_us=(forwarded - started) // 1000,
            accept_us=(time.perf_counter_ns() - forwarded) // 1000,
            rows=sum(len(rows.tokens) for rows in batch),
        )
        return [
            Outcome(rows, verdict and replace(verdict, timings=timings), taps_KX)
            for rows, verdict, taps_KX in zip(batch, verdicts, taps, strict=True)
        ]

    def stored_taps(self, pages: Sequence[int], positions: range) -> torch.Tensor:
        """Return the taps of tokens that were computed before, [N, X]."""
        return self._taps.of(slots_of(pages, positions))

    def _bucket_of(self, shares: Sequence[Share]) -> Bucket:
        last = shares[-1]
        return self._steps.buckets.fitting(
            last.end_row, last.first_node + last.num_nodes, len(shares)
        )

    def _keep(self, share: Share, verdict: Verdict | None, taps_RLH: torch.Tensor) -> torch.Tensor:
        """Store the taps of a session's kept rows, and return them, [K, X]; a copy."""
        kept = KeptRows(share.rows, share.first_row, verdict.path if verdict else ())
        first = share.first_tap
        taps_KX = taps_RLH[first : first + kept.num_rows].flatten(1).clone()
        self._taps.store(kept.slots(), taps_KX)
        return taps_KX
