"""Servers on a socket inside a test, waiting for what they bring about, reading refusals."""

from __future__ import annotations

import asyncio
import inspect
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc
from google.rpc import error_details_pb2, status_pb2

from protos import serving

_PATIENCE_S = 30.0


@asynccontextmanager
async def listening(*add_to: Callable[[grpc.aio.Server], None]) -> AsyncIterator[str]:
    """Yield the address of a server with the given services; it dies at the end, calls and all.

    It is a path. A port may have belonged to a server that an earlier test killed, and the channels
    of a process share what they know about an address.
    """
    with tempfile.TemporaryDirectory() as directory:
        async with listening_on(f"unix:{directory}/socket", *add_to) as address:
            yield address


@asynccontextmanager
async def listening_on(
    address: str, *add_to: Callable[[grpc.aio.Server], None]
) -> AsyncIterator[str]:
    """The same at an address of choice; port 0 is any free one."""
    server = serving.new_server()
    for add in add_to:
        add(server)
    port = server.add_insecure_port(address)
    await server.start()
    try:
        yield address.replace(":0", f":{port}")
    finally:
        await server.stop(None)


async def eventually(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait until a condition holds; fail if it does not."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        held = holds()
        if await held if inspect.isawaitable(held) else held:
            return
        assert time.monotonic() < deadline, f"never came true: {inspect.getsource(holds).strip()}"
        await asyncio.sleep(0.005)


def retry_delay_ms(error: grpc.aio.AioRpcError) -> int:
    """Return when a refused call may be tried again; fail if the refusal does not say."""
    status = status_pb2.Status.FromString(error.trailing_metadata()["grpc-status-details-bin"])
    assert status.message == error.details()
    (detail,) = status.details
    retry = error_details_pb2.RetryInfo()
    assert detail.Unpack(retry)
    return retry.retry_delay.ToMilliseconds()
