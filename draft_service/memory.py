"""Whether there is memory for one more drafter, said before it is taken."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draft_service.weights import read_config
from kernels.kv_pages import PAGE_LEN, num_pages_for

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_MIB = 2**20
_WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}


def check_memory(drafter_dir: Path, kv_tokens: int, free_bytes: int | None = None) -> None:
    """Raise ValueError with both numbers if weights and KV cache need more than is free.

    `free_bytes` is by default what this machine, or this container, can still give.
    """
    weights = sum(path.stat().st_size for path in drafter_dir.glob("*.safetensors"))
    cache = _kv_bytes(read_config(drafter_dir), kv_tokens)
    free = available_bytes() if free_bytes is None else free_bytes
    if weights + cache > free:
        raise ValueError(
            f"it needs {(weights + cache) // _MIB} MiB of memory ({weights // _MIB} of weights, "
            f"{cache // _MIB} of KV cache for {kv_tokens} tokens), {free // _MIB} MiB are available"
        )


def _kv_bytes(config: Mapping[str, Any], kv_tokens: int) -> int:
    """Return what keys and values take. Of a config that says too little: the loader refuses it."""
    heads = config.get("num_attention_heads") or 0
    kv_heads = config.get("num_key_value_heads") or heads
    head_dim = config.get("head_dim") or (config.get("hidden_size") or 0) // max(heads, 1)
    dtype = config.get("torch_dtype") or config.get("dtype")
    elements = 2 * num_pages_for(kv_tokens) * PAGE_LEN * kv_heads * head_dim
    return elements * _WIDTHS.get(str(dtype), 4)


def available_bytes() -> int:
    """Return how much memory can be taken: of the machine, and of the container if it is less."""
    fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
    of_machine = int(fields["MemAvailable"].split()[0]) * 1024
    return min(of_machine, _container_room(_CGROUP) or of_machine)


def _container_room(cgroup: Path) -> int | None:
    """Return what a control group (v2) leaves, None if there is none or it sets no limit."""
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
    except OSError:
        return None
    return None if limit == "max" else max(0, int(limit) - used)
