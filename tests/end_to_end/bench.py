"""Benchmarks as their users run them: through the command line, on a running gateway."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PROMPTS = (
    {"task": "copy", "prompt": "a b c a b c a b c a b"},
    {"task": "talk", "messages": [{"role": "user", "content": "a b"}]},
)


def write_prompts(path: Path) -> Path:
    """Write a file of two tasks."""
    path.write_text("".join(json.dumps(line) + "\n" for line in PROMPTS))
    return path


def run_bench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `slipstream bench` to its end."""
    command = [sys.executable, "-m", "slipstream", "bench", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def report_of(out: Path, *arguments: str | Path) -> dict[str, Any]:
    """Run a benchmark that writes its three files; return the report."""
    done = run_bench(*arguments, "--json", out)
    assert done.returncode == 0, done.stderr
    assert out.with_suffix(".md").read_text().strip() in done.stdout
    assert out.with_suffix(".png").stat().st_size > 1000
    return json.loads(out.read_text())
