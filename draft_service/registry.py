"""The drafters of this replica: which fit the target, and why the others do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from draft_service.drafters import Drafter
from draft_service.drafters.eagle3 import Eagle3Drafter
from draft_service.drafters.ngram import NgramDrafter
from draft_service.drafters.target_side import TargetSide
from protos.messages import check_id
from protos.pairing import Pairing, fingerprint

log = structlog.get_logger()


@dataclass(frozen=True)
class DrafterSpec:
    """A drafter to load: `ngram`, or ID=DIRECTORY of an EAGLE-3 checkpoint."""

    drafter_id: str
    path: Path | None

    @classmethod
    def parse(cls, text: str) -> DrafterSpec:
        drafter_id, separator, path = text.partition("=")
        check_id("drafter", drafter_id)
        if not path and text != "ngram":
            raise ValueError(f"drafter must be `ngram` or ID=DIRECTORY, got {text!r}")
        return cls(drafter_id, Path(path) if separator else None)


@dataclass(frozen=True)
class Registered:
    """A drafter that is ready, or the reason why it is refused."""

    spec: DrafterSpec
    drafter: Drafter[Any] | None
    refusal: str = ""


class DrafterRefusedError(Exception):
    """The drafter does not fit the target."""


class Registry:
    """Drafters by id. The first one that fits is the default."""

    def __init__(self, specs: Sequence[DrafterSpec], kv_tokens: int) -> None:
        """Drafters to load, each with a KV cache for so many tokens if it needs one."""
        if not specs:
            raise ValueError("at least one drafter is needed, got none")
        ids = [spec.drafter_id for spec in specs]
        if twice := {drafter_id for drafter_id in ids if ids.count(drafter_id) > 1}:
            raise ValueError(f"every drafter needs an id of its own, got {sorted(twice)} twice")
        self._specs = tuple(specs)
        self._kv_tokens = kv_tokens
        self._registered: Mapping[str, Registered] = {}

    @property
    def default_id(self) -> str:
        fitting = [entry.spec for entry in self.all if entry.drafter]
        return (fitting or self._specs)[0].drafter_id

    @property
    def all(self) -> list[Registered]:
        return list(self._registered.values())

    def load(self, target: TargetSide, pairing: Pairing) -> None:
        """Load every drafter for a target; one that does not fit is refused, not fatal."""
        loaded = [self._load(spec, target, pairing) for spec in self._specs]
        self._registered = {entry.spec.drafter_id: entry for entry in loaded}

    def get(self, drafter_id: str) -> Drafter[Any]:
        """Return a drafter, the default for "". Raises KeyError or DrafterRefusedError."""
        entry = self._registered[drafter_id or self.default_id]
        if entry.drafter is None:
            raise DrafterRefusedError(entry.refusal)
        return entry.drafter

    def _load(self, spec: DrafterSpec, target: TargetSide, pairing: Pairing) -> Registered:
        try:
            drafter = self._build(spec, target, pairing)
            if mismatches := drafter.pairing.mismatches(pairing):
                raise ValueError("; ".join(mismatches))
        except (ValueError, OSError) as error:
            return _refused(spec, str(error))
        except Exception as error:  # a checkpoint is foreign: it can be wrong in any way
            return _refused(spec, f"it cannot be loaded: {type(error).__name__}: {error}")
        log.info("drafter_ready", drafter_id=spec.drafter_id, kind=drafter.kind)
        return Registered(spec, drafter)

    def _build(self, spec: DrafterSpec, target: TargetSide, pairing: Pairing) -> Drafter[Any]:
        if spec.path is None:
            return NgramDrafter(spec.drafter_id, target.vocab_size, target.max_context_len)
        if target.model_dir is not None:
            _check_same_model(target.model_dir, pairing)
        return Eagle3Drafter.load(spec.drafter_id, spec.path, target, kv_tokens=self._kv_tokens)


def _refused(spec: DrafterSpec, reason: str) -> Registered:
    if spec.path is not None and str(spec.path) not in reason:
        reason = f"{spec.path}: {reason}"
    log.error("drafter_refused", drafter_id=spec.drafter_id, reason=reason)
    return Registered(spec, None, reason)


def _check_same_model(model_dir: Path, pairing: Pairing) -> None:
    """Weights borrowed from another model than the target's would only lower the accept length."""
    ours = fingerprint(model_dir)
    if ours != pairing.target_fingerprint:
        raise ValueError(
            f"target_model {model_dir} has fingerprint {ours}, "
            f"the target serves {pairing.target_fingerprint}"
        )
