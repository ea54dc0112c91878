"""`python -m benchmarks.gpu_check [--json FILE]`: kernels and steps, right and how fast.

Exit code 1 if one is wrong, 2 where there is no device.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_check import (
    attention_cases,
    draft_steps,
    elementwise_cases,
    kimi_pair,
    product_cases,
    sampling_cases,
    session_cases,
    steps,
    tree_cases,
)
from benchmarks.gpu_check.case import KIMI, Case, Sizes
from benchmarks.gpu_check.drafters import drafters
from benchmarks.gpu_check.measuring import Clock
from kernels.gpu.graphs import Capture

_KINDS = (
    elementwise_cases,
    session_cases,
    product_cases,
    attention_cases,
    kimi_pair,
    sampling_cases,
    tree_cases,
)


def all_cases(sizes: Sizes, device: torch.device) -> Iterator[Case]:
    """Yield every case, made when it is wanted: together they would fill a device."""
    torch.manual_seed(0)
    for kind in _KINDS:
        yield from kind.cases(sizes, device)


def measured(case: Case, clock: Clock) -> dict[str, Any]:
    """Return what is to be told of a case."""
    excess, seconds = case.checked(), clock.seconds(case.launch)
    return {
        "name": case.name,
        "error_over_allowed": excess,
        "right": excess <= 1,
        "microseconds": seconds * 1e6,
        "gb_per_s": case.num_bytes / seconds / 1e9,
        "share_of_copy": case.num_bytes / seconds / clock.bytes_per_s,
    }


def measured_steps(
    embedded_dir: Path | None, device: torch.device, capture: Capture
) -> Iterator[dict[str, Any]]:
    """Yield what is to be told of the steps of both services."""
    load = steps.StepLoad()
    for made in steps.models(load, embedded_dir, device):
        yield steps.measured(made, load, device, capture)
    for checked in drafters(draft_steps.SLOTS, embedded_dir, device):
        of_drafter = draft_steps.DraftSteps(checked, device)
        for draft_load in draft_steps.LOADS:
            yield of_drafter.measured(draft_load, capture)


def line_of(found: dict[str, Any]) -> str:
    """Return a case as a line of a table."""
    said = "right" if found["right"] else "WRONG"
    return (
        f"{found['name']:<34} {said}  {found['error_over_allowed']:8.3f}  "
        f"{found['microseconds']:10.1f} us  {found['gb_per_s']:8.1f} GB/s  "
        f"{found['share_of_copy']:6.2f}"
    )


def line_of_step(found: dict[str, Any]) -> str:
    """Return a step as a line of a table."""
    said = "right" if found["right"] else "WRONG"
    return (
        f"{found['name']:<72} {said}  {found['launched_ms']:8.3f} ms launched  "
        f"{found['replayed_ms']:8.3f} ms replayed  {found['launches']:5} launches in "
        f"{found['graphs']} graph  {found['weights_gb_per_s']:8.1f} GB/s"
    )


def main(arguments: list[str]) -> int:
    """Check and measure; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__)
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--embedded", type=Path, help="where the embedded model was fetched to")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("no GPU: torch finds no CUDA device; nothing was checked", file=sys.stderr)
        return 2
    device = torch.device("cuda")
    clock = Clock.on(device)
    about = {
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "copy_gb_per_s": clock.bytes_per_s / 1e9,
    }
    print(json.dumps(about))
    found = []
    for case in all_cases(KIMI, device):
        found.append(measured(case, clock))
        print(line_of(found[-1]), flush=True)
    of_steps = []
    for step in measured_steps(options.embedded, device, clock.capture):
        of_steps.append(step)
        print(line_of_step(step), flush=True)
    if options.json is not None:
        report = about | {"kernels": found, "steps": of_steps}
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if all(one["right"] for one in (*found, *of_steps)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
