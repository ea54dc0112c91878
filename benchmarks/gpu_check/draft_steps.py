"""The drafter's step on a device: launched one by one, replayed, and beside the reference on a CPU.

What is drafted is the same to the bit both ways. It is the reference's trees, but for near ties.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.gpu_check.draft_judge import Judge
from benchmarks.gpu_check.draft_sessions import (
    DraftLoad,
    Played,
    PlayedSession,
    play,
    play_sessions,
)
from benchmarks.gpu_check.drafters import CheckedDrafter
from benchmarks.gpu_check.grown_tree import whole_plan
from benchmarks.gpu_check.launches import CountingCapture
from draft_service.drafters.eagle3_gpu.drafter import Eagle3GpuDrafter, Facts
from draft_service.drafters.eagle3_gpu.weights import GpuWeights
from kernels.gpu.graphs import Capture
from kernels.gpu.runtime import on_device

LOADS = (DraftLoad(whole_plan(steps=5, width=1)), DraftLoad(whole_plan(steps=4, width=2)))
"""Chains, and trees."""
SLOTS = max(load.slots for load in LOADS)


class DraftSteps:
    """A drafter on a device, and its references."""

    def __init__(self, checked: CheckedDrafter, device: torch.device) -> None:
        self.checked = checked
        self.facts = Facts("check", checked.pairing, checked.target.max_context_len)
        with on_device(device):
            tensors = checked.read(torch.bfloat16, device)
            self.weights = GpuWeights.of(tensors, self.facts.max_context_len)
        self.judge = Judge(checked)

    def name(self, load: DraftLoad) -> str:
        """Return what is checked."""
        return f"drafter of {self.checked.name}, {load}"

    def measured(self, load: DraftLoad, capture: Capture) -> dict[str, Any]:
        """Return how long a round takes both ways, what it launches, and whether it is right."""
        sessions, counting = play_sessions(self.checked.config, load), CountingCapture(capture)
        launched = self._play(sessions, load, None)
        replayed = self._play(sessions, load, counting)
        taken = counting.take()
        weights = self.checked.bytes_read(load.plan.steps)
        return {
            "name": self.name(load),
            "launched_ms": launched.seconds * 1000,
            "replayed_ms": replayed.seconds * 1000,
            "launches": taken.kernels,
            "graphs": taken.graphs,
            "weights_gb_per_s": weights / replayed.seconds / 1e9,
            **self.judged(sessions, load, launched, replayed),
        }

    def judged(
        self, sessions: Sequence[PlayedSession], load: DraftLoad, launched: Played, replayed: Played
    ) -> dict[str, Any]:
        """Return whether both ways agree, and what the reference says of the last round."""
        same_bits, drafts = launched.rounds == replayed.rounds, replayed.rounds[-1]
        alike, error, missed = self.judge.judge(sessions, drafts, load)
        return {
            "same_bits": same_bits,
            "trees": len(drafts),
            "trees_of_reference": alike,
            "error_over_allowed": error,
            "missed_over_allowed": missed,
            "right": same_bits and error <= 1 and missed <= 1,
        }

    def _play(
        self, sessions: Sequence[PlayedSession], load: DraftLoad, counting: CountingCapture | None
    ) -> Played:
        """Play all rounds. What is counted in the end is the last one."""
        drafter = Eagle3GpuDrafter(self.facts, self.weights, load.kv_tokens, counting)
        return play(drafter, sessions, load, counting.take if counting else lambda: None)
