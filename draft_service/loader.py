"""Builds drafters for a target. What does not fit it, or into memory, is refused with a reason."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
import torch

from draft_service.drafters import Drafter
from draft_service.drafters.eagle3 import Eagle3Drafter
from draft_service.drafters.ngram import NgramDrafter
from draft_service.drafters.target_side import TargetSide
from draft_service.graphs import Bucket
from draft_service.memory import check_memory
from draft_service.placement import ON_CPU, Placement
from draft_service.shelf import shipped_drafters
from protos.messages import check_id
from protos.pairing import Pairing, fingerprint

if TYPE_CHECKING:
    # It imports Triton's side of things, which only a GPU needs.
    from kernels.gpu.graphs import Captured

log = structlog.get_logger()


@dataclass(frozen=True)
class DrafterSpec:
    """A drafter to load: `ngram`, a shipped one by its name, or ID=DIRECTORY of a checkpoint."""

    drafter_id: str
    path: Path | None

    @classmethod
    def parse(cls, text: str) -> DrafterSpec:
        drafter_id, separator, path = text.partition("=")
        check_id("drafter", drafter_id)
        if separator and path:
            return cls(drafter_id, Path(path))
        shipped = shipped_drafters()
        if text != "ngram" and text not in shipped:
            names = ", ".join(["ngram", *shipped])
            raise ValueError(f"drafter must be ID=DIRECTORY or one of {names}, got {text!r}")
        return cls(drafter_id, shipped.get(text))


class DrafterRefusedError(Exception):
    """The drafter takes no sessions; the message says why."""


@dataclass(frozen=True)
class Loader:
    """Knows the target, how many tokens a drafter's KV cache is to hold, and where it is to run."""

    target: TargetSide
    pairing: Pairing
    kv_tokens: int
    placement: Placement = ON_CPU

    def load(self, spec: DrafterSpec) -> Drafter[Any]:
        """Return a drafter that fits the target. Raises DrafterRefusedError. It blocks."""
        try:
            drafter = self._build(spec)
            if mismatches := drafter.pairing.mismatches(self.pairing):
                raise ValueError("; ".join(mismatches))
        except (ValueError, OSError) as error:
            raise _refusal(spec, str(error)) from None
        except Exception as error:  # a checkpoint is foreign: it can be wrong in any way
            reason = f"it cannot be loaded: {type(error).__name__}: {error}"
            raise _refusal(spec, reason) from None
        log.info("drafter_ready", drafter_id=spec.drafter_id, kind=drafter.kind)
        return drafter

    def _build(self, spec: DrafterSpec) -> Drafter[Any]:
        target = self.target
        if spec.path is None:
            return NgramDrafter(spec.drafter_id, target.vocab_size, target.max_context_len)
        if target.model_dir is not None:
            _check_same_model(target.model_dir, self.pairing)
        if self.placement.is_gpu and (drafter := self._on_gpu(spec.drafter_id, spec.path)):
            return drafter
        check_memory(spec.path, self.kv_tokens)
        return Eagle3Drafter.load(spec.drafter_id, spec.path, target, kv_tokens=self.kv_tokens)

    def _on_gpu(self, drafter_id: str, path: Path) -> Drafter[Any] | None:
        """Return a drafter that runs on the GPU; None if it is to fall back to the CPU."""
        # They import Triton, which is not everywhere, and which nobody else needs.
        from draft_service.drafters.eagle3_gpu.drafter import Eagle3GpuDrafter
        from draft_service.drafters.eagle3_gpu.fitness import UnfitForGpuError, check_fit

        device, graphs = self.placement.device, self.placement.graphs
        try:
            check_fit(path, device)
        except UnfitForGpuError as error:
            if not self.placement.may_fall_back:
                raise ValueError(f"{error}: --device cpu runs it") from None
            log.warning("drafter_on_cpu", drafter_id=drafter_id, reason=str(error))
            return None
        check_memory(path, self.kv_tokens, torch.cuda.mem_get_info(device)[0])
        drafter = Eagle3GpuDrafter.load(
            drafter_id, path, self.target, device, kv_tokens=self.kv_tokens, graphs=graphs
        )
        drafter.prepare(partial(_tell, drafter_id))
        return drafter


def _tell(drafter_id: str, bucket: Bucket, captured: Captured) -> None:
    log.info("drafter_step_ready", drafter_id=drafter_id, **bucket._asdict(), **captured._asdict())


def _refusal(spec: DrafterSpec, reason: str) -> DrafterRefusedError:
    if spec.path is not None and str(spec.path) not in reason:
        reason = f"{spec.path}: {reason}"
    log.error("drafter_refused", drafter_id=spec.drafter_id, reason=reason)
    return DrafterRefusedError(reason)


def _check_same_model(model_dir: Path, pairing: Pairing) -> None:
    """Weights borrowed from another model than the target's would only lower the accept length."""
    ours = fingerprint(model_dir)
    if ours != pairing.target_fingerprint:
        raise ValueError(
            f"target_model {model_dir} has fingerprint {ours}, "
            f"the target serves {pairing.target_fingerprint}"
        )
