"""More services beside a running stack: a second gateway, an adversarial drafter."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from slipstream.probe import is_healthy
from slipstream.stack import Addresses

_START_TIMEOUT_S = 60


@contextlib.contextmanager
def running(module: str, *arguments: str, address: str, kill: bool = False) -> Iterator[str]:
    """Run `python -m module` until it is left; yield its address once it is healthy.

    In the end it is asked to stop, or killed.
    """
    process = subprocess.Popen([sys.executable, "-m", module, *arguments])
    try:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not is_healthy(address):
            assert process.poll() is None, f"{module} ended with {process.returncode}"
            assert time.monotonic() < deadline, f"{module} does not start"
            time.sleep(0.05)
        yield address
    finally:
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        process.wait(10)


@contextlib.contextmanager
def gateway(
    model: Path, target: str, draft: str, *, deadline_ms: int, kill: bool = False
) -> Iterator[str]:
    """Run one more gateway; yield its address."""
    address = Addresses.free().gateway
    with running(
        "gateway",
        *("--model", str(model), "--listen", address, "--target", target),
        *("--draft", draft, "--draft-deadline-ms", str(deadline_ms)),
        address=address,
        kill=kill,
    ):
        yield address


@contextlib.contextmanager
def adversarial_gateway(model: Path, target: str) -> Iterator[str]:
    """Run a gateway whose drafter means harm; yield the gateway's address."""
    address = Addresses.free().draft
    module = "tests.end_to_end.adversarial_drafter"
    with running(module, target, address, address=address) as draft:
        with gateway(model, target, draft, deadline_ms=2000) as front:
            yield front
