"""What is wrong with the services at a moment, and the switch that tells them while they run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Disturbance:
    """What is wrong; by default nothing."""

    random_drafts: bool = False
    draft_delay_ms: float = 0.0
    """How much later every draft is sent."""
    extra_row_us: float = 0.0
    """How much longer a forward of the target takes for every row after the first."""


class Switch:
    """A file that says what is wrong now. One process sets it; others look whenever they act."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen_ns = 0
        self._now = Disturbance()

    def set(self, disturbance: Disturbance) -> None:
        """From now on this is wrong. A reader sees the old state or the new one, never a half."""
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(disturbance)))
        fresh.replace(self._path)

    def get(self) -> Disturbance:
        """Return what is wrong now; nothing before it was set. The file is read if it changed."""
        try:
            changed_ns = self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return Disturbance()
        if changed_ns != self._seen_ns:
            self._now = Disturbance(**json.loads(self._path.read_text()))
            self._seen_ns = changed_ns
        return self._now
