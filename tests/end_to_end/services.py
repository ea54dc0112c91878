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
def started(
    module: str, *arguments: str, address: str, end: signal.Signals = signal.SIGTERM
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `python -m module` until it is left; yield the process once it is healthy."""
    process = subprocess.Popen([sys.executable, "-m", module, *arguments])
    try:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not is_healthy(address):
            assert process.poll() is None, f"{module} ended with {process.returncode}"
            assert time.monotonic() < deadline, f"{module} does not start"
            time.sleep(0.05)
        yield process
    finally:
        process.send_signal(end)
        process.wait(10)


@contextlib.contextmanager
def running(module: str, *arguments: str, address: str, kill: bool = False) -> Iterator[str]:
    """The same, yielding its address. In the end it is asked to stop, or killed."""
    end = signal.SIGKILL if kill else signal.SIGTERM
    with started(module, *arguments, address=address, end=end):
        yield address


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
    """Run a gateway whose drafter means harm; yield the gateway's address.

    Much of what it sends is no draft, so many rounds wait for one in vain: not long.
    """
    address = Addresses.free().draft
    module = "tests.end_to_end.adversarial_drafter"
    with running(module, target, address, address=address) as draft:
        with gateway(model, target, draft, deadline_ms=100) as front:
            yield front
