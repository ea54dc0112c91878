"""A local stack: target, draft service and gateway as three processes on this machine.

They share its cores, so every process is told how many threads to use, and none may spin while it
waits: two spinning thread pools on two cores make a 9 ms product take 400 ms.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import grpc
import structlog

from draft_service.shelf import made_for
from protos.draft_pb2 import DrafterInfo
from protos.pairing import fingerprint
from slipstream.probe import is_healthy, list_drafters

log = structlog.get_logger()

# What the target takes. Its own module would bring torch, and seconds, to every command.
WEIGHTS = ("auto", "bf16", "int8", "int4")
_STOP_TIMEOUT_S = 10.0
_POLL_S = 0.05
_RESPAWN_PAUSE_S = 1.0
_LOG_TAIL_LINES = 15
_PR_SET_PDEATHSIG = 1
_ENVIRONMENT = {
    # gRPC's newer poller hands every message through one thread more.
    "GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener",
    "OMP_WAIT_POLICY": "passive",
    "KMP_BLOCKTIME": "0",
    # glibc gives freed memory back at once by default; large messages then cost page faults.
    "MALLOC_TRIM_THRESHOLD_": "536870912",
    "MALLOC_MMAP_THRESHOLD_": "536870912",
    "MALLOC_TOP_PAD_": "67108864",
}


@dataclass(frozen=True)
class Addresses:
    """Where the three services listen; `http` is the gateway's, too. Empty: not served."""

    gateway: str = "127.0.0.1:50050"
    target: str = "127.0.0.1:50051"
    draft: str = "127.0.0.1:50052"
    http: str = ""

    @classmethod
    def free(cls, *, http: bool = False) -> Addresses:
        """Return loopback ports that are free now."""
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(4 if http else 3)]
        ports = [listener.getsockname()[1] for listener in sockets]
        for listener in sockets:
            listener.close()
        return cls(*(f"127.0.0.1:{port}" for port in ports))


def default_drafters(model: Path) -> list[str]:
    """Return the drafters that were trained on a model, and prompt lookup, which fits any."""
    return [*made_for(fingerprint(model)), "ngram"]


@dataclass(frozen=True)
class StackConfig:
    """What to run. `drafters` as for the draft service, the default first.

    Those of `services` are started; the others are expected at their addresses.
    """

    model: Path
    addresses: Addresses
    drafters: Sequence[str] = ("ngram",)
    target_args: Sequence[str] = ()
    draft_args: Sequence[str] = ()
    gateway_args: Sequence[str] = ()
    services: Sequence[str] = ("target", "draft", "gateway")
    # Otherwise the services log to files that live as long as the stack.
    log_to_terminal: bool = False
    # What `python -m` runs in a service's place, with arguments that come before its own.
    stand_ins: Mapping[str, Sequence[str]] = field(default_factory=dict)


class StackError(Exception):
    """A service did not start, or ended by itself."""


class LocalStack:
    """Three processes, or some of them, started together and stopped together.

    A draft service that dies is started again; without a target or a gateway there is no stack.
    """

    def __init__(self, config: StackConfig) -> None:
        self.config = config
        self.addresses = config.addresses
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._logs = Path(tempfile.mkdtemp(prefix="slipstream-"))

    def start(self, *, timeout_s: float = 180.0) -> None:
        """Start all and wait until they are healthy.

        Raises StackError if a port is taken, a service ends, or a drafter does not fit.
        """
        try:
            own = [name for name in ("gateway", "target", "draft") if name in self.config.services]
            taken = [getattr(self.addresses, name) for name in own]
            http = [self.addresses.http] if "gateway" in own and self.addresses.http else []
            check_ports([*taken, *http])
            for name in self.config.services:
                self.spawn(name)
            for name in self.processes:
                self.wait_healthy(name, timeout_s=timeout_s)
            if "draft" in self.processes:
                self._check_drafters(timeout_s)
        except BaseException:
            self.stop()
            raise

    def spawn(self, name: str) -> None:
        """Start one service ("target", "draft" or "gateway"), also in the place of a dead one."""
        threads = {"target": os.cpu_count() or 1}.get(name, 1)
        module = self.config.stand_ins.get(name, (_MODULES[name],))
        command = [sys.executable, "-m", *module, *self._arguments(name)]
        with self._log_file(name) as log:
            self.processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **_ENVIRONMENT, "OMP_NUM_THREADS": str(threads)},
                # Ctrl-C reaches us alone: we stop the services in order.
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def wait_healthy(self, name: str, *, timeout_s: float = 180.0) -> None:
        """Wait until a service is healthy. Raises StackError if it ends or takes too long."""
        address = getattr(self.addresses, name)
        deadline = time.monotonic() + timeout_s
        while not is_healthy(address):
            if self.processes[name].poll() is not None:
                raise StackError(self._obituary(name))
            if time.monotonic() > deadline:
                raise StackError(f"the {name} service at {address} is not healthy in time")
            time.sleep(_POLL_S)

    def wait(self) -> None:
        """Wait until the target or the gateway ends by itself. Raises StackError then."""
        while True:
            for name, process in list(self.processes.items()):
                if process.poll() is not None:
                    self._bury(name)
            time.sleep(_POLL_S)

    def _bury(self, name: str) -> None:
        """A drafter only ever changes the speed: it is replaced. The others are missed."""
        if name != "draft":
            raise StackError(self._obituary(name))
        log.warning("draft_service_restarted", reason=self._obituary(name))
        time.sleep(_RESPAWN_PAUSE_S)
        self.spawn(name)

    def stop(self) -> None:
        """Ask the services to stop, the gateway first, and wait; kill one that does not."""
        for name in ("gateway", "draft", "target"):
            process = self.processes.get(name)
            if process is not None and process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self._logs, ignore_errors=True)

    def log_of(self, name: str) -> str:
        """Return what a service has logged, if it logs to a file."""
        path = self._logs / f"{name}.log"
        return path.read_text(errors="replace") if path.is_file() else ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _log_file(self, name: str) -> IO[bytes]:
        if self.config.log_to_terminal:
            return open(os.dup(sys.stderr.fileno()), "ab")  # noqa: PTH123
        return (self._logs / f"{name}.log").open("ab")

    def _arguments(self, name: str) -> list[str]:
        addresses, model = self.addresses, str(self.config.model)
        if name == "target":
            return ["--model", model, "--listen", addresses.target, *self.config.target_args]
        if name == "draft":
            drafters = [word for spec in self.config.drafters for word in ("--drafter", spec)]
            return [
                *("--target", addresses.target, "--listen", addresses.draft),
                *("--target-model", model, *drafters, *self.config.draft_args),
            ]
        http = ("--http-listen", addresses.http) if addresses.http else ()
        return [
            *("--model", model, "--listen", addresses.gateway, "--target", addresses.target),
            *("--draft", addresses.draft, *http, *self.config.gateway_args),
        ]

    def _check_drafters(self, timeout_s: float) -> None:
        """Whoever names a drafter wants it: one that does not fit must not go unnoticed."""
        deadline = time.monotonic() + timeout_s
        while not (drafters := self._drafters()):
            if time.monotonic() > deadline:
                raise StackError("the draft service did not load its drafters in time")
            time.sleep(_POLL_S)
        refused = [f"{info.drafter_id}: {info.refusal}" for info in drafters if info.refusal]
        if refused:
            raise StackError("refused drafter " + "; ".join(refused))

    def _drafters(self) -> Sequence[DrafterInfo]:
        """Return the loaded drafters; none from a service that is too busy to answer."""
        try:
            return list_drafters(self.addresses.draft).drafters
        except grpc.RpcError:
            return ()

    def _obituary(self, name: str) -> str:
        tail = "\n".join(self.log_of(name).splitlines()[-_LOG_TAIL_LINES:])
        code = self.processes[name].returncode
        return f"the {name} service ended with exit code {code}" + (f":\n{tail}" if tail else "")


_MODULES = {"target": "target_service", "draft": "draft_service", "gateway": "gateway"}


def check_ports(addresses: Sequence[str]) -> None:
    """Raise StackError for a port that is named twice or taken: a probe would reach another's."""
    listeners: list[socket.socket] = []
    try:
        for address in addresses:
            host, _, port = address.rpartition(":")
            listeners.append(socket.create_server((host, int(port))))
    except OSError as error:
        raise StackError(f"cannot listen on {address}: {error.strerror}") from None
    finally:
        for listener in listeners:
            listener.close()


def _die_with_parent() -> None:
    """Have the kernel stop this process when its launcher is killed. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
