"""What the first rank tells the others: which step to run next. A socket to each; no answer.

An order is 16 bytes: a bucket, and how many bytes of the shared memory describe the step. With none
there is no step: it is to be captured.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

from target_service.buckets import Bucket

_ORDER = struct.Struct("<4I")
_READY = b"R"


class Order(NamedTuple):
    """A step to be run, or captured."""

    bucket: Bucket
    num_bytes: int


class OrderReader:
    """The end of one that follows."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)

    def report_ready(self) -> None:
        """Say that everything is loaded."""
        self._socket.sendall(_READY)

    def __iter__(self) -> Iterator[Order]:
        """Yield orders until there is nobody who gives any. Waiting costs nothing."""
        while order := self._socket.recv(_ORDER.size, socket.MSG_WAITALL):
            *bucket, num_bytes = _ORDER.unpack(order)
            yield Order(Bucket(*bucket), num_bytes)


class OrderWriter:
    """The end of the one that leads."""

    def __init__(self) -> None:
        self._socket, self._other = socket.socketpair()

    @property
    def reader_fd(self) -> int:
        """What the other process is to inherit."""
        return self._other.fileno()

    def close_reader(self) -> None:
        """Leave the other end to the process that has inherited it."""
        self._other.close()

    def wait_ready(self) -> bool:
        """Wait until everything is loaded there; False if the process has ended."""
        return self._socket.recv(len(_READY)) == _READY

    def tell(self, order: Order) -> None:
        """Raises OSError if the process has ended."""
        self._socket.sendall(_ORDER.pack(*order.bucket, order.num_bytes))

    def close(self) -> None:
        """There are no more orders."""
        self._socket.close()
