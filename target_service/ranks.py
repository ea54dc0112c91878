"""The other ranks of a target whose layers several devices share: started, led, watched, stopped.

A target that has lost a rank can run no step, and a thread that waits for a GPU cannot be
interrupted. So the first rank that ends takes the whole process with it, and says which it was.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import structlog
import torch

from target_service.buckets import Bucket
from target_service.config import TargetConfig
from target_service.orders import Order, OrderWriter
from target_service.team import LOOPBACK, RankJob, Seat, Team, join, leave

MODULE = "target_service.rank"
_STOP_TIMEOUT_S = 10.0
_OBITUARY_S = 2.0

log = structlog.get_logger()


class Ranks:
    """All ranks but the first, which is this process."""

    def __init__(
        self, config: TargetConfig, devices: Sequence[torch.device], module: str = MODULE
    ) -> None:
        """Start a process for each device but the first. `module` is what they run."""
        self._stopping = False
        self._writers = [OrderWriter() for _ in devices[1:]]
        self._inputs_fd = os.memfd_create("slipstream-inputs")
        self._listener = socket.create_server((LOOPBACK, 0))
        self._port = self._listener.getsockname()[1]
        self._seats = [self._seat(rank, devices) for rank in range(len(devices))]
        self.processes = [
            self._start(seat, writer, config, module)
            for seat, writer in zip(self._seats[1:], self._writers, strict=True)
        ]
        for rank, process in enumerate(self.processes, start=1):
            threading.Thread(target=self._watch, args=(rank, process), daemon=True).start()

    def join(self) -> Team:
        """Take the first place, once all have come."""
        return join(self._seats[0], self._listener.detach())

    def wait_loaded(self) -> None:
        """Wait until all have loaded what is theirs. If one ends, so does this process."""
        for writer in self._writers:
            if not writer.wait_ready():
                self._fail("a rank ended while it loaded")

    @contextmanager
    def lead(self, bucket: Bucket, num_bytes: int) -> Iterator[None]:
        """Have the others run, or capture, what this process runs within it.

        If that fails, ranks are no longer where the others are: the process ends.
        """
        try:
            for writer in self._writers:
                writer.tell(Order(bucket, num_bytes))
            yield
        except Exception as error:
            log.exception("step_failed")
            self._fail(f"a step failed on rank 0, and the others cannot go on: {error}")

    def stop(self) -> None:
        """Let the others end, and wait; kill one that does not."""
        self._stopping = True
        for writer in self._writers:
            writer.close()
        for process in self.processes:
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        leave()
        os.close(self._inputs_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _seat(self, rank: int, devices: Sequence[torch.device]) -> Seat:
        return Seat(
            rank=rank,
            of=len(devices),
            device=str(devices[rank]),
            port=self._port,
            inputs_fd=self._inputs_fd,
        )

    def _start(
        self, seat: Seat, writer: OrderWriter, config: TargetConfig, module: str
    ) -> subprocess.Popen[bytes]:
        job = RankJob(
            **seat.model_dump(), orders_fd=writer.reader_fd, parent=os.getpid(), config=config
        )
        process = subprocess.Popen(
            [sys.executable, "-m", module, job.model_dump_json()],
            stdin=subprocess.DEVNULL,
            pass_fds=(job.orders_fd, job.inputs_fd),
            # Ctrl-C reaches the first rank alone, which stops the others.
            start_new_session=True,
        )
        writer.close_reader()
        return process

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        if not self._stopping:
            self._end(f"rank {rank} of {len(self._seats)} ended with exit code {code}")

    def _fail(self, reason: str) -> None:
        """End; where a rank has ended, who watches it says so first."""
        time.sleep(_OBITUARY_S)
        self._end(reason)

    def _end(self, reason: str) -> None:
        self._stopping = True
        for process in self.processes:
            process.kill()
        sys.stderr.write(f"error: {reason}\n")
        sys.stderr.flush()
        os._exit(1)
