"""What all tests share: one thread a process, no hypothesis deadline, the embedded model."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "2")

# The cores are shared with other work: time limits would test the machine, not the code.
settings.register_profile(
    "slipstream", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("slipstream")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sanitized",
        action="store_true",
        help="native kernels that find wrong memory accesses; preload libasan and libubsan",
    )
    parser.addoption(
        "--family", help="native kernels for CPUs of this family, which this one is of"
    )


def pytest_configure(config: pytest.Config) -> None:
    sanitized, name = config.getoption("--sanitized"), config.getoption("--family")
    if sanitized or name:
        from kernels import native
        from kernels.native.build import FLAGS, SANITIZED, build
        from kernels.native.family import FAMILIES

        family = next((one for one in FAMILIES if one.name == name), None)
        path = build(SANITIZED if sanitized else FLAGS, family)
        native.library_path = lambda: path


@pytest.fixture(scope="module", autouse=True)
def _reference_kernels() -> Iterator[None]:
    """Whatever a test lets run natively, in the next file the reference runs again."""
    yield
    if native := sys.modules.get("kernels.native"):
        native.disable()


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The embedded model's directory; fetched if it is not in the cache yet."""
    from slipstream.fetch import fetch

    return fetch("smollm2-135m", show_progress=False)
