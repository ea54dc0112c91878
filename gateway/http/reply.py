"""What goes back to one client: a body with a status, or events, and what went wrong in either."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from gateway.http.error import HttpError

_EVENT_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
_DONE = b"data: [DONE]\n\n"


def in_json(body: Any) -> bytes:
    """Return compact JSON in UTF-8."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def answered(body: Any, headers: dict[str, str] | None = None, status: int = 200) -> web.Response:
    """Return a whole response."""
    return web.Response(
        body=in_json(body), status=status, headers=headers, content_type="application/json"
    )


def refused(error: HttpError) -> web.Response:
    """Return a response that says what is wrong."""
    return answered(error.body(), error.headers, error.status)


class Reply:
    """One response. As long as no event was sent, what goes wrong has a status of its own."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._stream: web.StreamResponse | None = None

    async def send(self, event: Any, headers: dict[str, str]) -> None:
        """Send an event; the headers go out with the first one. Waits for a slow client."""
        if self._stream is None:
            self._stream = web.StreamResponse(headers=_EVENT_HEADERS | headers)
            await self._stream.prepare(self._request)
        await self._stream.write(b"data: " + in_json(event) + b"\n\n")

    async def end(self) -> web.StreamResponse:
        """Say that all events were sent."""
        assert self._stream is not None, "something was sent before"
        await self._stream.write(_DONE)
        return self._stream

    async def refuse(self, error: HttpError) -> web.StreamResponse:
        """Say what went wrong. After events it is one more, and the end of them is not said."""
        if self._stream is None:
            return refused(error)
        await self.send(error.body(), {})
        return self._stream
