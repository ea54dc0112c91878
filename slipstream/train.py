"""`slipstream train`: a drafter from recordings, with a live view of how far it has come."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from training.train import Recipe, train
from training.trainer import Schedule

# Of malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 2**30


def run_train(
    recordings: Sequence[Path],
    model: Path,
    recipe: Recipe,
    schedule: Schedule,
    out: Path,
    console: Console,
) -> None:
    """Train, or go on with what was begun in `out`. Raises ValueError if things do not fit."""
    _keep_freed_memory()
    # Code for a product of a size is generated once, if it is still there when the size comes back.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "4096")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    _join_group()
    with _progress(console) as progress:
        view = _View(progress, schedule, console)
        drafter = train(recordings, model, recipe, schedule, out, view.told)
    console.print(f"the drafter is in {drafter}")


def _keep_freed_memory() -> None:
    """Let glibc keep what is freed: every step takes as much again, and new pages are zeroed."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
            libc.mallopt(option, _KEPT_BYTES)


def _join_group() -> None:
    """Under `torchrun` there are several of us, each with some of the batches."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group()


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("training"),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console,
    )


class _View:
    """What is seen of a training."""

    def __init__(self, progress: Progress, schedule: Schedule, console: Console) -> None:
        self._progress = progress
        self._console = console
        self._task = progress.add_task("", total=schedule.num_tokens)

    def told(self, report: Mapping[str, Any]) -> None:
        """Show a report of the trainer."""
        if "tokens" not in report:
            self._console.print(", ".join(f"{name} {value}" for name, value in report.items()))
            return
        rates = [value for name, value in report.items() if name.startswith("acceptance_")]
        by_position = " ".join(f"{rate:.2f}" for rate in rates)
        self._progress.update(
            self._task,
            completed=report["tokens"],
            description=(
                f"loss {report['loss']:.2f}, accepted {by_position}, "
                f"{report['tokens_per_second']:.0f} tokens/s"
            ),
        )
