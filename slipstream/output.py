"""Files that a command writes in the end: what cannot be written is refused at the beginning."""

from __future__ import annotations

import os
from pathlib import Path

import typer


def writable(path: Path | None) -> Path | None:
    """Return the path of a file to write, for typer's `callback`.

    Raises BadParameter if it cannot be written as things are.
    """
    if path is None:
        return None
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a directory, not a file")
    if path.exists() and not os.access(path, os.W_OK):
        raise typer.BadParameter(f"{path} may not be written to")
    # `new_file` makes the directories that are missing.
    parent = next(one for one in path.absolute().parents if one.exists())
    if not (parent.is_dir() and os.access(parent, os.W_OK | os.X_OK)):
        raise typer.BadParameter(f"{path} cannot be written: nothing can be made in {parent}")
    return path


def new_file(path: Path) -> Path:
    """Make the directories that a file still lacks; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
