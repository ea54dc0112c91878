"""Servers on a loopback port inside a test, waiting for what they bring about, reading refusals."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc
from google.rpc import error_details_pb2, status_pb2

from protos import serving

_PATIENCE_S = 30.0


@asynccontextmanager
async def listening(*add_to: Callable[[grpc.aio.Server], None]) -> AsyncIterator[str]:
    """Yield the address of a server with the given services; it dies at the end, calls and all."""
    server = serving.new_server()
    for add in add_to:
        add(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
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
