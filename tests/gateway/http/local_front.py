"""An HTTP front on a socket inside the test, over a gateway with a scripted target."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from gateway.http.server import HttpFront
from tests.gateway.local_gateway import PROMPT, TIMEOUT_S, LocalGateway, gateway

COMPLETIONS = "/v1/completions"
CHATS = "/v1/chat/completions"


class LocalFront:
    """A front, a client of it, and the gateway behind."""

    def __init__(self, front: HttpFront, client: aiohttp.ClientSession, local: LocalGateway):
        self.front = front
        self.client = client
        self.local = local

    def ask(self, **fields: Any) -> Any:
        """Start a completion of 24 tokens that are decoded plainly."""
        return self.client.post(COMPLETIONS, json=body(**fields))


def body(**fields: Any) -> dict[str, Any]:
    usual = {"prompt": PROMPT, "max_tokens": 24, "ignore_eos": True, "speculation": {"mode": "off"}}
    return usual | fields


@asynccontextmanager
async def front(*scripts: Any, **rules: Any) -> AsyncIterator[LocalFront]:
    """Yield a front over a gateway with these scripts and rules."""
    async with gateway(*scripts, **rules) as local:
        http = HttpFront(local.generator)
        port = await http.start("127.0.0.1:0")
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        url = f"http://127.0.0.1:{port}"
        async with aiohttp.ClientSession(url, timeout=timeout) as client:
            yield LocalFront(http, client, local)
        await http.stop(0)


async def status_and_error(call: Any) -> tuple[int, dict[str, Any]]:
    """Return how a request was refused."""
    async with call as response:
        return response.status, (await response.json())["error"]


def events(text: str) -> list[Any]:
    """Return what was sent in events; the one that says that all were sent as it is."""
    lines = text.removesuffix("\n\n").split("\n\n")
    data = [line.removeprefix("data: ") for line in lines]
    return [one if one == "[DONE]" else json.loads(one) for one in data]
