"""The drafters that come with Slipstream, in the folder `drafters` beside its packages."""

from __future__ import annotations

import json
from pathlib import Path

SHELF = Path(__file__).parent.parent / "drafters"


def shipped_drafters(shelf: Path = SHELF) -> dict[str, Path]:
    """Return the directories of the drafters that are shipped, by name."""
    return {path.parent.name: path.parent for path in sorted(shelf.glob("*/config.json"))}


def made_for(target_fingerprint: str, shelf: Path = SHELF) -> list[str]:
    """Return the names of the drafters that were trained on a target."""
    return [
        name
        for name, directory in shipped_drafters(shelf).items()
        if _trained_on(directory) == target_fingerprint
    ]


def _trained_on(directory: Path) -> str:
    config = json.loads((directory / "config.json").read_text())
    return str(config.get("slipstream", {}).get("target_fingerprint", ""))
