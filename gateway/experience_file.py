"""A gateway's experience across restarts: a JSON file, by target and by what it computes with.

Costs of another machine or other weights would mislead, so they are kept apart.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from gateway.experience import Experience
from protos import target_pb2

log = structlog.get_logger()

_FORMAT = 1
_SAVE_EVERY_S = 60.0


def key_of(target: target_pb2.GetTargetResponse) -> str:
    """Return what costs depend on: the model, its weights as they are kept, and the hardware."""
    parts = (target.pairing.target_fingerprint, target.weights, target.kernels, target.device)
    return " ".join(part or "-" for part in parts)


@dataclass(frozen=True)
class ExperienceFile:
    """The part of a file that is about one target."""

    path: Path
    key: str

    def load(self) -> Experience:
        """Return what was learned before; nothing, and a warning, if the file is damaged."""
        experience = Experience()
        state = self._all().get(self.key)
        if state is None:
            return experience
        try:
            experience.restore(state)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("experience_ignored", path=str(self.path), reason=repr(error))
            return Experience()
        return experience

    def save(self, experience: Experience) -> None:
        """Write it down. Another gateway that writes the same file does not lose its own part."""
        states = self._all() | {self.key: experience.state()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_name(f"{self.path.name}.{os.getpid()}.part")
        part.write_text(json.dumps({"format": _FORMAT, "targets": states}, indent=1))
        part.replace(self.path)

    async def keep(self, experience: Experience) -> None:
        """Save now and then, and once more when cancelled. What cannot be saved is logged once."""
        try:
            while True:
                await asyncio.sleep(_SAVE_EVERY_S)
                self._try_to_save(experience)
        finally:
            self._try_to_save(experience)

    def _try_to_save(self, experience: Experience) -> None:
        try:
            self.save(experience)
        except OSError as error:
            log.warning("experience_not_saved", path=str(self.path), reason=str(error))

    def _all(self) -> dict[str, Any]:
        try:
            found = json.loads(self.path.read_text())
            return dict(found["targets"]) if found["format"] == _FORMAT else {}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("experience_ignored", path=str(self.path), reason=repr(error))
            return {}
