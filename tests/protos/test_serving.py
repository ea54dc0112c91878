"""What all services do alike on the wire, seen from the other end of a socket."""

import asyncio
import json
import os
import signal
import sys

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos import draft_pb2, draft_pb2_grpc, serving
from tests.loopback import listening, listening_on, retry_delay_ms

LOOPBACK = [
    "127.0.0.1:50051",
    "127.8.8.8:1",
    "[::1]:50051",
    "localhost:50051",
    "unix:/run/slipstream.sock",
    "unix:relative.sock",
]
REACHABLE = [
    "0.0.0.0:50051",
    "[::]:50051",
    ":50051",
    "10.0.0.1:50051",
    "[2001:db8::1]:50051",
    "gpu-17:50051",
    "localhost.example.com:50051",
    "127.0.0.1.example.com:50051",
    "dns:///0.0.0.0:50051",
    "ipv4:0.0.0.0:50051",
    "127.0.0.1:1,0.0.0.0:2",
]


@pytest.mark.parametrize(
    "address", ["127.0.0.1:50051", "[::1]:1", "draft:65535", "unix:/run/a", "dns:///draft:50052"]
)
async def test_a_channel_is_opened_to_an_address(address):
    async with serving.open_channel(address):
        pass


@pytest.mark.parametrize("address", ["", "draft", ":50051", "draft:0", "draft:99999", "draft:http"])
def test_what_is_no_address_is_refused_before_anything_is_sent(address):
    with pytest.raises(ValueError, match="must be HOST:PORT with a port in") as refusal:
        serving.open_channel(address)
    assert repr(address) in str(refusal.value)


@pytest.mark.parametrize("address", LOOPBACK)
def test_an_address_that_nobody_else_reaches_is_fine(address):
    serving.check_listen_address(address, insecure=False)


@pytest.mark.parametrize("address", REACHABLE)
def test_an_address_that_others_reach_must_be_wanted(address):
    with pytest.raises(ValueError, match=r"not loopback.*--insecure") as refusal:
        serving.check_listen_address(address, insecure=False)
    assert repr(address) in str(refusal.value)

    serving.check_listen_address(address, insecure=True)


@pytest.mark.parametrize("address", ["", "127.0.0.1", "localhost:", "localhost:http"])
def test_an_address_without_a_port_is_no_matter_of_trust(address):
    with pytest.raises(ValueError, match="must be HOST:PORT") as refusal:
        serving.check_listen_address(address, insecure=False)

    assert repr(address) in str(refusal.value)
    assert "--insecure" not in str(refusal.value)


class BusyServicer(draft_pb2_grpc.DraftServiceServicer):
    """Has no room for anybody."""

    async def ListDrafters(self, request, context):  # noqa: N802
        """Refuse."""
        await serving.abort_retryable(context, "no room", retry_after_s=2.5)


def busy(server):
    draft_pb2_grpc.add_DraftServiceServicer_to_server(BusyServicer(), server)


async def ask(address, **options):
    async with grpc.aio.insecure_channel(address, **options) as channel:
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        return await stub.ListDrafters(draft_pb2.ListDraftersRequest(), timeout=30)


async def test_a_refusal_for_lack_of_room_says_when_to_try_again():
    async with listening(busy) as address:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await ask(address)

    assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refusal.value.details() == "no room"
    assert retry_delay_ms(refusal.value) == 2500


async def test_a_proxy_of_the_environment_carries_no_traffic_of_ours(monkeypatch):
    """The control: without our options the proxy, which does not exist, is asked."""
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with listening_on("127.0.0.1:0", busy) as address:
        with pytest.raises(grpc.aio.AioRpcError) as proxied:
            await ask(address)
        with pytest.raises(grpc.aio.AioRpcError) as direct:
            await ask(address, options=serving.CHANNEL_OPTIONS)

    assert proxied.value.code() is grpc.StatusCode.UNAVAILABLE
    assert direct.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_no_client_of_ours_pings_faster_than_a_server_of_ours_allows():
    """A server ends the connections of one that does."""
    interval = dict(serving.CHANNEL_OPTIONS)["grpc.keepalive_time_ms"]
    least = dict(serving.SERVER_OPTIONS)["grpc.http2.min_ping_interval_without_data_ms"]

    assert interval >= least
    assert dict(serving.SERVER_OPTIONS)["grpc.keepalive_permit_without_calls"] == 1


async def test_a_port_in_use_is_an_error_that_names_it():
    """Two servers must not share a port without a word."""
    async with listening_on("127.0.0.1:0", busy) as address:
        with pytest.raises(OSError, match=f"cannot listen on {address}"):
            await serving.serve(serving.new_server(), address, "second")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_service_is_healthy_until_it_is_told_to_stop(tmp_path, number):
    """A watcher of its health is told that it stops before the connection ends."""
    address = f"unix:{tmp_path}/socket"
    serving_until_signal = asyncio.create_task(
        serving.serve(serving.new_server(), address, "tested")
    )
    seen = []
    async with serving.open_channel(address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(), wait_for_ready=True
        )
        async for response in watch:
            seen.append(response.status)
            if response.status == health_pb2.HealthCheckResponse.SERVING:
                os.kill(os.getpid(), number)
            if response.status == health_pb2.HealthCheckResponse.NOT_SERVING:
                break
        watch.cancel()
    await serving_until_signal

    assert seen[-2:] == [
        health_pb2.HealthCheckResponse.SERVING,
        health_pb2.HealthCheckResponse.NOT_SERVING,
    ]


async def test_a_channel_finds_a_service_that_comes_back(tmp_path):
    """The same channel, after the first server died."""
    address = f"unix:{tmp_path}/socket"

    async def serve_once(channel):
        stub = draft_pb2_grpc.DraftServiceStub(channel)
        async with listening_on(address, busy):
            with pytest.raises(grpc.aio.AioRpcError) as answer:
                await stub.ListDrafters(draft_pb2.ListDraftersRequest(), wait_for_ready=True)
        return answer.value.code()

    async with serving.open_channel(address) as channel:
        codes = [await serve_once(channel) for _ in range(2)]

    assert codes == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 2


@pytest.mark.parametrize("error", [ValueError("steps must be 3"), OSError("no such port")])
def test_a_users_mistake_ends_as_one_line(error):
    async def main():
        raise error

    with pytest.raises(SystemExit) as end:
        serving.run(main)

    assert end.value.code == f"error: {error}"


def test_our_own_mistake_is_not_hidden():
    async def main():
        raise AssertionError("ours")

    with pytest.raises(AssertionError, match="ours"):
        serving.run(main)


@pytest.fixture
def logging_afterwards():
    """Leave logging as the next test expects it."""
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("logging_afterwards")
class TestLogging:
    """Levels by name; one JSON object a line for machines."""

    @pytest.mark.parametrize("level", ["loud", "", "10", "basic_format", "Logger"])
    def test_unknown_levels_are_refused(self, level):
        with pytest.raises(ValueError, match=r"log_level must be debug, .*got ") as refusal:
            serving.configure_logging(level)
        assert repr(level) in str(refusal.value)

    def test_what_is_below_the_level_is_not_logged(self, capsys):
        serving.configure_logging("warning")
        log = structlog.get_logger()
        log.info("quiet")
        log.warning("loud", port=5)

        (line,) = capsys.readouterr().err.splitlines()
        assert json.loads(line) | {"timestamp": ""} == {
            "event": "loud",
            "level": "warning",
            "port": 5,
            "timestamp": "",
        }

    def test_people_on_a_terminal_are_not_shown_json(self, capsys, monkeypatch):
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        serving.configure_logging("DEBUG")
        structlog.get_logger().debug("hello")

        line = capsys.readouterr().err
        assert "hello" in line
        assert not line.startswith("{")
