"""What every service does alike on the wire: options, errors, health, and a clean end.

The keepalive numbers come as a set. A frozen process still acknowledges packets, so only
`ping_timeout_ms` notices it; and a client that pings faster than the server allows is thrown out.
"""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
import structlog
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_status import rpc_status
from pydantic import ValidationError

_KEEPALIVE = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
]
CHANNEL_OPTIONS: list[tuple[str, int | str]] = [
    *_KEEPALIVE,
    # A name with several addresses is several replicas: every new stream takes the next one.
    ("grpc.lb_policy_name", "round_robin"),
    # A proxy from the environment must never carry internal traffic.
    ("grpc.enable_http_proxy", 0),
    # A service that comes back is found again within a second or two.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]
SERVER_OPTIONS: list[tuple[str, int]] = [
    *_KEEPALIVE,
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # Two servers on one port would share its connections without a word.
    ("grpc.so_reuseport", 0),
]
STOP_GRACE_S = 2.0
_MAX_PORT = 65535

log = structlog.get_logger()


def check_address(address: str) -> None:
    """Raise ValueError for an address at which no service can be."""
    # What names its resolver, as dns:///draft:50052 does, is for gRPC to read.
    if address.startswith("unix:") or ":///" in address:
        return
    host, _, port = address.rpartition(":")
    # gRPC would take a larger port modulo 65536, and somebody else may be there.
    if not host or not port.isdecimal() or not 1 <= int(port) <= _MAX_PORT:
        raise ValueError(f"address {address!r} must be HOST:PORT with a port in [1, {_MAX_PORT}]")


def open_channel(address: str) -> grpc.aio.Channel:
    """Return a channel to another service. Raises ValueError for what is no address."""
    check_address(address)
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


def new_server() -> grpc.aio.Server:
    """Return a server with our options."""
    return grpc.aio.server(options=SERVER_OPTIONS)


def check_listen_address(address: str, *, insecure: bool) -> None:
    """Raise ValueError for an address that others can reach, unless that is wanted."""
    if address.startswith("unix:"):
        return
    host, _, port = address.rpartition(":")
    # gRPC would take a larger port modulo 65536.
    if not port.isdecimal() or int(port) > _MAX_PORT:
        raise ValueError(
            f"listen address {address!r} must be HOST:PORT with a port in [0, {_MAX_PORT}]"
        )
    host = host.strip("[]")
    if insecure or host == "localhost":
        return
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise ValueError(
            f"listen address {address!r} is not loopback; there is no authentication yet, "
            "so say --insecure if a private network protects it"
        )


async def abort_retryable(context: Any, message: str, *, retry_after_s: float = 1.0) -> NoReturn:
    """End a call with RESOURCE_EXHAUSTED and say when to try again."""
    delay = duration_pb2.Duration()
    delay.FromMilliseconds(int(retry_after_s * 1000))
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(code=code_pb2.RESOURCE_EXHAUSTED, message=message, details=[detail])
    await context.abort_with_status(rpc_status.to_status(status))
    raise AssertionError("abort_with_status raises")


async def serve(
    server: grpc.aio.Server,
    address: str,
    name: str,
    stop_beside: Callable[[float], Awaitable[None]] | None = None,
) -> None:
    """Bind, report health, serve until SIGINT or SIGTERM. Raises OSError if the port is taken.

    Another front of the same service is stopped together with this one, with the same grace.
    """
    # From here on: whoever reads "listening" may send a signal at once.
    stopped = _stop_signal()
    health = health_aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    port = _bind(server, address)
    await server.start()
    # What was imported and loaded stays: the collector need not look through it ever again.
    gc.collect()
    gc.freeze()
    await health.set("", health_pb2.HealthCheckResponse.SERVING)
    log.info("listening", service=name, address=address, port=port)
    await stopped.wait()
    log.info("stopping", service=name)
    await health.enter_graceful_shutdown()
    beside = [stop_beside(STOP_GRACE_S)] if stop_beside is not None else []
    await asyncio.gather(server.stop(STOP_GRACE_S), *beside)


def _bind(server: grpc.aio.Server, address: str) -> int:
    try:
        return int(server.add_insecure_port(address))
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: {error}") from None


def _stop_signal() -> asyncio.Event:
    """Return an event that SIGINT and SIGTERM set."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    return stopped


def run(main: Callable[[], Any]) -> None:
    """Run a service's async main on uvloop; a user's mistake ends as one line, not a traceback."""
    try:
        import uvloop

        uvloop.run(main())
    except ValidationError as error:
        sys.exit(f"error: {_wrong_settings(error)}")
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def _wrong_settings(error: ValidationError) -> str:
    """Return in one line which settings are wrong, and how."""
    found = [(str(one["loc"][0]), one["msg"], one["type"], one["input"]) for one in error.errors()]
    return "; ".join(
        f"{name}: {message}" if kind == "missing" else f"{name}: {message}, got {value!r}"
        for name, message, kind, value in found
    )


def configure_logging(level: str) -> None:
    """Log to stderr: for people on a terminal, as JSON otherwise."""
    if not isinstance(getattr(logging, level.upper(), None), int):
        raise ValueError(f"log_level must be debug, info, warning or error, got {level!r}")
    renderer: Any = (
        # Plain tracebacks: richer ones print variables, and prompts with them.
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if sys.stderr.isatty()
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
