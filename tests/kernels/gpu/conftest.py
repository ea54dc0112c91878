"""Interpreted and compiled tests need processes of their own: Triton is one or the other for good.

With TRITON_INTERPRET=1 the folder `interpreted` is collected, without it `compiled`; neither where
Triton is not, which is anywhere but on Linux.
"""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

HALVES = {
    "interpreted": "needs TRITON_INTERPRET=1; see make test-kernels",
    "compiled": "needs a process without TRITON_INTERPRET",
}
INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"
LEFT_OUT = ["compiled" if INTERPRETS else "interpreted"] if find_spec("triton") else [*HALVES]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    within = collection_path.relative_to(Path(__file__).parent)
    return True if within.parts and within.parts[0] in LEFT_OUT else None


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
