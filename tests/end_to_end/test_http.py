"""OpenAI's own client on a real stack: the texts, and the tokens, that gRPC gives."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal

import aiohttp
import openai
import pytest

from slipstream.client import Client, Request
from slipstream.stack import Addresses
from tests.end_to_end.services import started
from tests.end_to_end.test_cancel import NEVER_SAID, all_freed, held

SAMPLING = {"temperature": 1.0, "top_p": 0.9, "seed": 7, "presence_penalty": 0.5}
TOKENS = {"return_token_ids": True}
MESSAGES = [{"role": "user", "content": "say it again and again"}]


def client_of(stack):
    return openai.OpenAI(
        base_url=f"http://{stack.addresses.http}/v1", api_key="none", max_retries=0
    )


@pytest.fixture
def client(tiny_stack):
    with client_of(tiny_stack) as client:
        yield client


def over_grpc(stack, **fields):
    """Return the answer of the other front to the same request."""
    with Client(stack.addresses.gateway) as grpc_client:
        stopping = {"max_new_tokens": 16}
        return grpc_client.complete(Request(sampling=SAMPLING, stopping=stopping, **fields))


def test_a_chat_is_the_chat_of_grpc(client, tiny_stack):
    """Token for token, whole and in chunks, with any drafter."""
    model = client.models.list().data[0].id
    asked = {"model": model, "messages": MESSAGES, "max_completion_tokens": 16, **SAMPLING}
    expected = over_grpc(tiny_stack, chat=MESSAGES)

    for drafter in ("ngram", "eagle"):
        extra = TOKENS | {"speculation": {"mode": "fixed", "drafter_id": drafter}}
        whole = client.chat.completions.create(**asked, extra_body=extra)
        chunks = list(client.chat.completions.create(**asked, stream=True, extra_body=extra))

        assert whole.choices[0].message.content == expected.text
        assert whole.choices[0].token_ids == list(expected.token_ids)
        assert whole.choices[0].finish_reason == expected.finish_reason
        assert whole.speculation["drafter_id"] == drafter
        assert drafter == "ngram" or whole.speculation["drafted"] > 0
        assert whole.seed == SAMPLING["seed"]
        assert "".join(chunk.choices[0].delta.content for chunk in chunks) == expected.text
        streamed = [token for chunk in chunks for token in chunk.choices[0].token_ids]
        assert streamed == list(expected.token_ids)
        assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant"] + [None] * (
            len(chunks) - 1
        )
        assert chunks[-1].choices[0].finish_reason == expected.finish_reason


@pytest.mark.parametrize("prompt", ["the quick brown fox", [10, 20, 30, 40]], ids=["text", "ids"])
def test_a_completion_is_the_completion_of_grpc(client, tiny_stack, prompt):
    """Its log-probabilities to the bit; the numbers come with the last chunk."""
    kind = "text" if isinstance(prompt, str) else "token_ids"
    expected = over_grpc(tiny_stack, **{kind: prompt})
    asked = {"model": "tiny-llama", "prompt": prompt, "max_tokens": 16, "logprobs": 2, **SAMPLING}

    whole = client.completions.create(**asked, extra_body=TOKENS)
    chunks = list(
        client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )

    assert whole.choices[0].text == expected.text
    assert whole.choices[0].token_ids == list(expected.token_ids)
    assert whole.choices[0].logprobs.token_logprobs == list(expected.logprobs)
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == expected.text
    usage = expected.finish.usage
    for totals in (whole, chunks[-1]):
        assert totals.usage.prompt_tokens == usage.prompt_tokens
        assert totals.usage.completion_tokens == usage.completion_tokens == len(expected.token_ids)
        assert totals.speculation["rounds"] > 0
    assert chunks[-1].choices == []


def test_an_answer_stops_at_a_stop_string(client):
    asked = {"model": "tiny-llama", "prompt": "abc", "seed": 3, "max_tokens": 60}
    text = client.completions.create(**asked).choices[0].text
    stop = text[5:7]

    stopped = client.completions.create(**asked, stop=stop)

    assert stopped.choices[0].text == text[: text.index(stop)]
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].stop_reason == stop


def test_the_client_raises_its_own_errors(client):
    """A wrong value, another model, a wish that we lack."""
    ask = client.chat.completions.create
    with pytest.raises(openai.BadRequestError, match=r"top_p must be in \(0, 1\], got 7.0"):
        ask(model="tiny-llama", messages=MESSAGES, top_p=7)
    with pytest.raises(openai.NotFoundError, match="no model 'gpt-4'"):
        ask(model="gpt-4", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match=r"n is not supported \(only 1\), got 3"):
        ask(model="tiny-llama", messages=MESSAGES, n=3)
    with pytest.raises(openai.InternalServerError) as late:
        ask(model="tiny-llama", messages=MESSAGES, extra_body={"timeout_s": 0.001})
    assert late.value.status_code == 504


async def give_up(http, *, stream, delay_s):
    """Ask for a long answer; vanish after a while."""
    body = {"messages": MESSAGES, "max_tokens": NEVER_SAID, "ignore_eos": True, "stream": stream}
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(delay_s):
            async with http.post("/v1/chat/completions", json=body) as response:
                await response.read()


@pytest.mark.parametrize("stream", [True, False])
async def test_clients_that_vanish_leave_nothing_behind(tiny_stack, stream):
    """While they wait for the first word, and in the middle; both services hold nothing then."""
    async with aiohttp.ClientSession(f"http://{tiny_stack.addresses.http}") as http:
        leaving = [
            asyncio.create_task(give_up(http, stream=stream, delay_s=0.02 + 0.03 * number))
            for number in range(12)
        ]
        last = asyncio.create_task(give_up(http, stream=stream, delay_s=60))
        while not (await held(tiny_stack))["target sessions"]:
            assert not last.done()
        await asyncio.gather(*leaving)
        last.cancel()
        await asyncio.wait([last])

    assert await all_freed(tiny_stack) == {}


def test_both_fronts_share_one_limit_and_end_with_the_gateway(tiny_stack, tiny_target):
    """A full gateway is 429 here; a stopping one says so in the stream."""
    addresses = Addresses.free(http=True)
    flags = ["--model", str(tiny_target), "--listen", addresses.gateway, "--max-requests", "1"]
    flags += ["--http-listen", addresses.http, "--target", tiny_stack.addresses.target]
    flags += ["--draft", tiny_stack.addresses.draft]
    with started("gateway", *flags, address=addresses.gateway) as process:
        url = f"http://{addresses.http}/v1"
        with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
            ask = client.chat.completions.create
            with Client(addresses.gateway) as grpc_client:
                stopping = {"max_new_tokens": NEVER_SAID, "ignore_eos": True}
                running = grpc_client.stream(Request(chat="x", stopping=stopping))
                next(running)
                with pytest.raises(openai.RateLimitError, match="1 requests are running") as full:
                    ask(model="tiny-llama", messages=MESSAGES)
                assert full.value.response.headers["retry-after"] == "1"
                running.close()
            streaming = patient(ask)
            next(streaming)
            process.send_signal(signal.SIGTERM)
            with pytest.raises(openai.APIError, match="the gateway stops"):
                list(streaming)


def patient(ask):
    """Stream an answer that takes longer than a gateway waits; it may be full for a moment."""
    while True:
        with contextlib.suppress(openai.RateLimitError):
            return ask(
                model="tiny-llama",
                messages=MESSAGES,
                stream=True,
                max_tokens=NEVER_SAID,
                extra_body={"ignore_eos": True, "speculation": {"mode": "off"}},
            )


async def test_events_are_what_other_clients_read(tiny_stack):
    """Line by line: data, an empty line, and DONE in the end."""
    body = {"prompt": "abc", "max_tokens": 4, "stream": True, "ignore_eos": True}
    async with aiohttp.ClientSession(f"http://{tiny_stack.addresses.http}") as http:
        async with http.post("/v1/completions", json=body) as response:
            events = (await response.text()).split("\n\n")

    assert response.content_type == "text/event-stream"
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert {chunk["id"] for chunk in chunks} == {f"cmpl-{response.headers['X-Request-Id']}"}
