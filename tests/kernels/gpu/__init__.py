"""Kernels for GPUs, proven without one: interpreted, compiled, launched on a fake driver."""

import os
from pathlib import Path

# Triton would keep what it compiles in the home directory.
os.environ.setdefault("TRITON_CACHE_DIR", str(Path(__file__).parents[3] / "build/triton"))
