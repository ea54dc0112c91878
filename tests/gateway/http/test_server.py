"""Requests over a real socket: what comes back, what is refused and how, and what is left."""

import asyncio
import gzip
import json
import subprocess
import sys

import aiohttp
import grpc
import pytest

from gateway.http.server import MAX_BODY, HttpFront
from protos.serving import abort_retryable
from tests.gateway.http.local_front import (
    CHATS,
    COMPLETIONS,
    body,
    events,
    front,
    status_and_error,
)
from tests.gateway.local_gateway import TOKENIZER, answer, plain_answer
from tests.gateway.scripted_drafter import silent
from tests.gateway.scripted_target import honest
from tests.gateway.test_server import aborting, waiting
from tests.loopback import eventually

STREAM = {"stream": True, "stream_options": {"include_usage": True}}
JSON = {"Content-Type": "application/json"}


async def test_an_answer_is_that_of_grpc():
    """Whole, and in chunks put together."""
    async with front() as one:
        async with one.ask(return_token_ids=True) as response:
            whole = await response.json()
        async with one.ask(return_token_ids=True, **STREAM) as response:
            *chunks, totals, done = events(await response.text())

    choice, tokens = whole["choices"][0], plain_answer()
    assert choice["token_ids"] == tokens
    assert choice["text"] == TOKENIZER.decode(tokens)
    assert choice["finish_reason"] == "length"
    assert [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]] == tokens
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == choice["text"]
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)
    assert totals["choices"] == []
    assert totals["usage"] == whole["usage"]
    assert done == "[DONE]"


async def test_what_is_served_is_described():
    async with front() as one:
        async with one.client.get("/v1/models") as response:
            (model,) = (await response.json())["data"]
        async with one.client.get("/v1/models/scripted") as response:
            assert await response.json() == model
        async with one.client.get("/health") as response:
            assert response.status == 200
        status, error = await status_and_error(one.client.get("/v1/models/gpt-4"))

    assert model["id"] == "scripted"
    assert model["max_model_len"] == 4096
    assert (status, error["code"]) == (404, "model_not_found")
    assert error["message"] == "no model 'gpt-4'; this gateway serves 'scripted'"


@pytest.mark.parametrize(
    ("fields", "status", "reason"),
    [
        ({"top_p": 2.0}, 400, "top_p must be in (0, 1], got 2.0"),
        ({"max_tokens": 5000}, 400, "max_tokens must be in [1, 4093] after a prompt of 3 tokens"),
        ({"max_tokens": 0}, 400, "max_tokens must be in [1, 4093]"),
        ({"stop": "x" * 300}, 400, "stop have 1 to 256 characters each, got 300"),
        ({"prompt": [9999999]}, 400, "got 9999999"),
        ({"model": "gpt-4"}, 404, "no model 'gpt-4'"),
        ({"nonsense": 1}, 400, "nonsense is not a field we know"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_bad_request_is_refused_before_anything_runs(stream, fields, status, reason):
    """With a status of its own, though it asked for events."""
    async with front() as one:
        got, error = await status_and_error(one.ask(stream=stream, **fields))
        await one.local.all_is_free()

    assert got == status
    assert reason in error["message"]
    assert error["type"] == "invalid_request_error"
    assert one.local.target.opened == []


async def test_a_model_without_a_template_has_no_chats():
    async with front() as one:
        chat = {"messages": [{"role": "user", "content": "x"}]}
        status, error = await status_and_error(one.client.post(CHATS, json=chat))

    assert status == 400
    assert "no chat template" in error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/", 404), ("GET", COMPLETIONS, 405), ("POST", "/v1/models", 405)],
)
async def test_another_path_or_method_is_refused_in_the_same_shape(method, path, status):
    async with front() as one:
        got, error = await status_and_error(one.client.request(method, path))

    assert got == status
    assert path in error["message"]


async def test_only_json_is_read():
    """A browser sends other types to any server without asking it."""
    async with front() as one:
        text = one.client.post(COMPLETIONS, data=json.dumps(body()).encode())
        status, error = await status_and_error(text)

    assert status == 415
    assert "must be application/json, got 'application/octet-stream'" in error["message"]


async def test_a_body_that_is_too_large_is_refused_before_it_is_sent():
    async with front() as one:
        headers = JSON | {"Content-Length": str(MAX_BODY + 1)}
        unsent = asyncio.Event()

        async def begun():
            yield b"{"
            await unsent.wait()

        call = one.client.post(COMPLETIONS, data=begun(), headers=headers)
        status, error = await status_and_error(call)
        unsent.set()

    assert status == 413
    assert f"at most {MAX_BODY} bytes, got {MAX_BODY + 1} bytes" in error["message"]


async def test_a_body_that_becomes_too_large_is_refused():
    async def pieces():
        for _ in range(5):
            yield b" " * 2**20

    async with front() as one:
        call = one.client.post(COMPLETIONS, data=pieces(), headers=JSON)
        status, _ = await status_and_error(call)
        await one.local.all_is_free()

    assert status == 413


async def test_a_compressed_body_stays_what_it_is():
    """A kilobyte that becomes a gigabyte is no JSON."""
    async with front() as one:
        headers = JSON | {"Content-Encoding": "gzip"}
        data = gzip.compress(json.dumps(body()).encode())
        call = one.client.post(COMPLETIONS, data=data, headers=headers)
        status, error = await status_and_error(call)

    assert status == 400
    assert "not JSON" in error["message"]


HEAD = (
    f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"
)


async def exchange(port, *pieces):
    """Send bytes, with time to read them between the pieces; return what comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(0.05)
    answered = await reader.read(400)
    writer.close()
    return answered.decode()


@pytest.mark.parametrize(
    "pieces",
    [
        (b"no such thing\r\n\r\n",),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 500 + b"\r\n",),
        (b"GET / HTTP/1.1\r\na: " + b"b" * 10_000 + b"\r\n\r\n",),
        (HEAD.encode(), b"no chunk\r\n"),
    ],
    ids=["no HTTP", "many headers", "long header", "broken body"],
)
async def test_what_is_not_http_is_refused_without_a_traceback(pieces, caplog, monkeypatch):
    """Headers are bounded: 128 of 8190 bytes. A body that breaks is one that does not come."""
    monkeypatch.setattr("gateway.http.server._BODY_TIMEOUT_S", 0.2)
    async with front() as one:
        answered = await exchange(one.client._base_url.port, *pieces)
        await one.local.all_is_free()

    assert answered.split()[1] in ("400", "408")
    assert caplog.records == []


async def test_both_fronts_have_the_same_places():
    """A full gateway says when to try again; a place is free once a request is gone."""
    async with front(silent, waiting, max_requests=1) as one:
        async with one.ask(stream=True):
            async with one.ask() as full:
                assert full.status == 429
                assert full.headers["Retry-After"] == "1"
                error = (await full.json())["error"]
            with pytest.raises(grpc.aio.AioRpcError, match="1 requests are running"):
                await answer(one.local)
        await one.local.all_is_free()

    assert error["message"] == "1 requests are running already"
    assert error["code"] == "rate_limit_exceeded"


async def test_a_full_target_is_one_to_try_again():
    async def full(number, verdict, context):
        await abort_retryable(context, "the KV cache is full")

    async with front(silent, full) as one:
        status, error = await status_and_error(one.ask())

    assert (status, error["message"]) == (429, "the KV cache is full")


async def test_a_target_that_is_gone_makes_requests_unavailable(monkeypatch):
    monkeypatch.setattr("gateway.upstream._OPEN_PATIENCE_S", 0.2)
    async with front() as one:
        await one.local.kill_target()
        status, error = await status_and_error(one.ask(stream=True))

    assert (status, error["code"]) == (503, "service_unavailable")


async def test_what_goes_wrong_in_a_stream_is_its_last_event():
    """And nothing says that it was all."""
    async with front(silent, aborting(3, grpc.StatusCode.INTERNAL, "the step failed")) as one:
        async with one.ask(stream=True) as response:
            *chunks, last = events(await response.text())
        await one.local.all_is_free()

    assert response.status == 200
    assert len(chunks) == 3
    assert last["error"]["message"] == "the target is gone: the step failed"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_of_its_own_ends_a_request(stream):
    """Before anything was sent it is a status, after that an event."""
    async with front(silent, waiting) as one:
        async with one.ask(stream=stream, timeout_s=2.0 if stream else 0.1) as response:
            text = await response.text()
        await one.local.all_is_free()

    error = events(text)[-1] if stream else json.loads(text)
    assert error["error"]["message"] == "timeout_s passed"
    assert error["error"]["code"] == "timeout"
    assert response.status == (200 if stream else 504)


@pytest.mark.parametrize("target", [waiting, honest], ids=["silent", "answering"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_frees_everything(stream, target):
    async with front(silent, target) as one:
        asking = asyncio.ensure_future(one.ask(stream=stream, max_tokens=4000).__aenter__())
        await eventually(lambda: one.local.target.num_sessions == 1)
        asking.cancel()
        await asyncio.wait([asking])
        if not asking.cancelled():
            asking.result().close()
        await one.local.all_is_free()


async def test_a_body_that_does_not_come_holds_no_place_for_long(monkeypatch):
    monkeypatch.setattr("gateway.http.server._BODY_TIMEOUT_S", 0.1)

    async def never():
        yield b"{"
        await asyncio.sleep(60)

    async with front() as one:
        call = one.client.post(COMPLETIONS, data=never(), headers=JSON)
        status, error = await status_and_error(call)
        await one.local.all_is_free()

    assert status == 408
    assert "did not come within" in error["message"]


async def test_a_front_that_stops_waits_a_while_and_then_says_so():
    """A short answer comes to its end; a long one ends with the reason, and its session too."""
    released = asyncio.Event()

    async def slow(number, verdict, context):
        if number == 2:
            await released.wait()
        return await (waiting if number > 30 else honest)(number, verdict, context)

    async with front(silent, slow) as one:
        async with one.ask(stream=True, max_tokens=8) as short:
            async with one.ask(stream=True, max_tokens=400) as long:
                stopping = asyncio.create_task(one.front.stop(1.0))
                await asyncio.sleep(0)
                released.set()
                assert events(await short.text())[-1] == "[DONE]"
                assert not stopping.done()
                last = events(await long.text())[-1]
        await stopping
        await one.local.all_is_free()

    assert last["error"]["message"] == "the gateway stops"
    assert last["error"]["code"] == "service_unavailable"


async def test_the_clients_id_is_kept_if_it_can_be():
    async with front() as one:
        for given, kept in (("mine-1", True), ("not one of ours!", False), ("x" * 65, False)):
            headers = {"X-Request-Id": given}
            async with one.client.post(COMPLETIONS, json=body(), headers=headers) as response:
                id_ = response.headers["X-Request-Id"]
                assert (id_ == given) is kept
                assert (await response.json())["id"] == f"cmpl-{id_}"


async def test_a_port_in_use_is_an_error_that_names_it():
    async with front() as one:
        taken = f"127.0.0.1:{one.client._base_url.port}"
        with pytest.raises(OSError, match=f"cannot listen on {taken}"):
            await HttpFront(one.local.generator).start(taken)


async def test_it_may_listen_at_a_path(tmp_path):
    async with front() as one:
        second = HttpFront(one.local.generator)
        await second.start(f"unix:{tmp_path}/socket")
        connector = aiohttp.UnixConnector(f"{tmp_path}/socket")
        async with aiohttp.ClientSession("http://path", connector=connector) as client:
            async with client.get("/health") as response:
                assert response.status == 200
        await second.stop(0)


def test_an_address_that_others_can_reach_is_refused():
    """Before anything is loaded or waited for."""
    command = [sys.executable, "-m", "gateway", "--model", ".", "--http-listen", "0.0.0.0:8000"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert ran.returncode == 1
    assert ran.stderr.startswith("error: listen address '0.0.0.0:8000' is not loopback")


async def test_an_error_of_ours_is_no_traceback(monkeypatch):
    async with front() as one:
        monkeypatch.setattr(one.front, "_texts", None)
        status, error = await status_and_error(one.ask(logprobs=1))
        await one.local.all_is_free()

    assert (status, error["code"]) == (500, "internal_error")
    assert "Traceback" not in error["message"]
