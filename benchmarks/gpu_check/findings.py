"""What a check finds, kept as it is found: a device may be lost, and a case may end in an error.

What raises is wrong, with its reason, and what comes after it is checked all the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

Finding = dict[str, Any]
"""Of one case; `right` and `name` are always there, and `reason` where it could not be checked."""


def tried(name: str, measure: Callable[[], Finding]) -> Finding:
    """Return what is measured, or why that was not possible."""
    try:
        return measure()
    except Exception as error:
        return _failed(name, error)


def until_one_fails(name: str, found: Iterator[Finding]) -> Iterator[Finding]:
    """Yield what is found; where no next one can be made, why not."""
    try:
        yield from found
    except Exception as error:
        yield _failed(name, error)


def _failed(name: str, error: Exception) -> Finding:
    return {"name": name, "right": False, "reason": f"{type(error).__name__}: {error}"}


class Report:
    """Everything found so far: printed line by line, and in a file that is whole after each."""

    def __init__(self, about: Mapping[str, Any], path: Path | None) -> None:
        self._path = path
        self._report: dict[str, Any] = {**about, "kernels": [], "steps": []}
        self._write()

    def add(self, part: str, found: Finding, line: Callable[[Finding], str]) -> None:
        """Keep and tell one finding of the kernels or the steps."""
        self._report[part].append(found)
        self._write()
        print(_line_of_failed(found) if "reason" in found else line(found), flush=True)

    @property
    def is_right(self) -> bool:
        """Whether nothing was found wrong."""
        return all(found["right"] for part in ("kernels", "steps") for found in self._report[part])

    def _write(self) -> None:
        if self._path is not None:
            self._path.write_text(json.dumps(self._report, indent=2) + "\n")


def _line_of_failed(found: Finding) -> str:
    first, *_ = found["reason"].splitlines()
    return f"{found['name']:<34} WRONG  {first}"
