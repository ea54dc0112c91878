"""What a measurement was made on. Nothing in it names a place or a person."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

from protos import target_pb2
from slipstream.probe import get_target

# Those that make a difference to the kernels.
_INSTRUCTION_SETS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_bf16",
    "amx_int8",
)
_PACKAGES = ("slipstream", "torch", "grpcio", "numpy")


def describe(target: str | None) -> dict[str, Any]:
    """Return the machine and, if its address is known, the target on it.

    Raises RpcError if the target does not answer.
    """
    cpu = _cpu_facts()
    flags = cpu.get("flags", "").split()
    return {
        "cpu": cpu.get("model name", platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "instruction_sets": [name for name in _INSTRUCTION_SETS if name in flags],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": platform.system(),
        "versions": {"python": platform.python_version()}
        | {package: version(package) for package in _PACKAGES},
        "target": None if target is None else _target_facts(get_target(target)),
    }


def in_a_line(machine: dict[str, Any]) -> str:
    """Return the description for the head of a table."""
    target = machine["target"] or {}
    served = [target[name] for name in ("model", "weights", "kernels", "device") if name in target]
    sets = " ".join(machine["instruction_sets"])
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    return "; ".join([f"{machine['cpu']}, {machine['cores']} cores", sets, *served, versions])


def _target_facts(target: target_pb2.GetTargetResponse) -> dict[str, Any]:
    return {
        "model": target.model_name,
        "weights": target.weights,
        "kernels": target.kernels,
        "device": target.device,
    }


def _cpu_facts() -> dict[str, str]:
    """Return the first processor's lines of /proc/cpuinfo; nothing where there is no such file."""
    path = Path("/proc/cpuinfo")
    text = path.read_text().partition("\n\n")[0] if path.is_file() else ""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
