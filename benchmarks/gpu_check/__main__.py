"""`python -m benchmarks.gpu_check [--json FILE]`: kernels and steps, right and how fast.

Exit code 1 if one is wrong, also if it ends in an error; 2 where there is no device, or no such
directory.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

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
from benchmarks.gpu_check.drafters import CheckedDrafter, drafters
from benchmarks.gpu_check.findings import Finding, Report, tried, until_one_fails
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


def all_cases(sizes: Sizes, device: torch.device) -> Iterator[tuple[str, Iterator[Case]]]:
    """Yield kinds of cases, each made when it is wanted: together they would fill a device."""
    torch.manual_seed(0)
    for kind in _KINDS:
        yield kind.__name__.rpartition(".")[2], kind.cases(sizes, device)


def measured(case: Case, clock: Clock) -> Finding:
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


def of_kernels(device: torch.device, clock: Clock) -> Iterator[Finding]:
    """Yield what is to be told of all cases."""
    for kind, cases in all_cases(KIMI, device):
        found = (tried(case.name, partial(measured, case, clock)) for case in cases)
        yield from until_one_fails(kind, found)


def of_steps(
    embedded_dir: Path | None, device: torch.device, capture: Capture
) -> Iterator[Finding]:
    """Yield what is to be told of the steps of both services."""
    load = steps.StepLoad()
    for name, make in steps.models(load, embedded_dir, device):
        yield tried(name, partial(steps.measured, make, load, device, capture))
    for name, read in drafters(draft_steps.SLOTS, embedded_dir, device):
        yield from until_one_fails(f"drafter of {name}", of_drafter(read, device, capture))


def of_drafter(
    read: Callable[[], CheckedDrafter], device: torch.device, capture: Capture
) -> Iterator[Finding]:
    """Yield what is to be told of the steps of one drafter."""
    of_loads = draft_steps.DraftSteps(read(), device)
    for load in draft_steps.LOADS:
        yield tried(of_loads.name(load), partial(of_loads.measured, load, capture))


def line_of(found: Finding) -> str:
    """Return a case as a line of a table."""
    said = "right" if found["right"] else "WRONG"
    return (
        f"{found['name']:<34} {said}  {found['error_over_allowed']:8.3f}  "
        f"{found['microseconds']:10.1f} us  {found['gb_per_s']:8.1f} GB/s  "
        f"{found['share_of_copy']:6.2f}"
    )


def line_of_step(found: Finding) -> str:
    """Return a step as a line of a table."""
    said = "right" if found["right"] else "WRONG"
    return (
        f"{found['name']:<72} {said}  {found['launched_ms']:8.3f} ms launched  "
        f"{found['replayed_ms']:8.3f} ms replayed  {found['launches']:5} launches in "
        f"{found['graphs']} graph  {found['weights_gb_per_s']:8.1f} GB/s"
    )


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Return the options. What they name is looked at now: the check takes minutes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__)
    parser.add_argument("--json", type=Path, help="write all figures here, after every case")
    parser.add_argument("--embedded", type=Path, help="where the embedded model was fetched to")
    options = parser.parse_args(arguments)
    if options.json is not None and (options.json.is_dir() or not options.json.parent.is_dir()):
        parser.error(f"--json {options.json} is no file in a directory that is there")
    if options.embedded is not None and not (options.embedded / "config.json").is_file():
        parser.error(f"--embedded {options.embedded} holds no model: there is no config.json")
    return options


def main(arguments: list[str]) -> int:
    """Check and measure; return the exit code."""
    options = parsed(arguments)
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
    report = Report(about, options.json)
    for found in of_kernels(device, clock):
        report.add("kernels", found, line_of)
    for found in of_steps(options.embedded, device, clock.capture):
        report.add("steps", found, line_of_step)
    return 0 if report.is_right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
