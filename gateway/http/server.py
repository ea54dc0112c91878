"""The gateway's HTTP face: routes, what is read from a request, who is told that it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from grpc import StatusCode

from gateway.generator import Generator
from gateway.http.asked import Asked, parse
from gateway.http.chat import CHAT
from gateway.http.completion import COMPLETION
from gateway.http.envelope import Api, Envelope
from gateway.http.error import HttpError
from gateway.http.reply import Reply, answered, refused
from gateway.http.token_logprobs import TokenTexts
from gateway.refusal import RefusalError
from protos import gateway_pb2 as pb
from protos.messages import check_id

log = structlog.get_logger()

MAX_BODY = 4 * 2**20
"""Bytes of a request: what gRPC takes, too."""
_BODY_TIMEOUT_S = 30.0
_KEEPALIVE_S = 75.0
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
# The names that a limit's message has in gRPC, and has here.
_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "stop_strings": "stop"}


class HttpFront:
    """OpenAI's API over a generator."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._texts = TokenTexts(generator.model.tokenizer)
        # Of the requests that run.
        self._limits: set[asyncio.Timeout] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False
        app = web.Application(client_max_size=MAX_BODY, middlewares=[_in_openai_words])
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/v1/models", self._models),
                web.get("/v1/models/{model}", self._model),
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._completion),
            ]
        )
        self._runner = web.AppRunner(
            app,
            # A client that goes away cancels what was done for it.
            handler_cancellation=True,
            access_log=None,
            logger=_library_log(),
            keepalive_timeout=_KEEPALIVE_S,
            # A small body must not become a large one.
            auto_decompress=False,
            # `stop` has waited already.
            shutdown_timeout=0.1,
        )

    async def start(self, address: str) -> int:
        """Listen; return the port (0 for a path). Raises OSError if that is not possible."""
        await self._runner.setup()
        path = address.removeprefix("unix:")
        if path != address:
            await web.UnixSite(self._runner, path).start()
            return 0
        host, _, port = address.rpartition(":")
        site = web.TCPSite(self._runner, host.strip("[]"), int(port), reuse_port=False)
        try:
            await site.start()
        except OSError as error:
            raise OSError(f"cannot listen on {address}: {error.strerror or error}") from None
        return int(self._runner.addresses[0][1])

    async def stop(self, grace_s: float) -> None:
        """Take no more requests, wait a while for those that run, then end them, saying so."""
        self._stopping = True
        for site in list(self._runner.sites):
            await site.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._idle.wait()
        for limit in self._limits:
            limit.reschedule(asyncio.get_running_loop().time())
        await self._runner.cleanup()

    async def _health(self, request: web.Request) -> web.Response:
        del request
        return answered({"status": "stopping"}, status=503) if self._stopping else answered({})

    async def _models(self, request: web.Request) -> web.Response:
        del request
        return answered({"object": "list", "data": [self._description()]})

    async def _model(self, request: web.Request) -> web.Response:
        self._check_model(request.match_info["model"])
        return answered(self._description())

    def _description(self) -> dict[str, str | int]:
        return {
            "id": self._generator.model_name,
            "object": "model",
            # Nobody knows when it was made; clients want a number.
            "created": 0,
            "owned_by": "slipstream",
            "max_model_len": self._generator.model.max_context_len,
        }

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, CHAT)

    async def _completion(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, COMPLETION)

    async def _answer(self, request: web.Request, api: Api) -> web.StreamResponse:
        """Answer, or say why not: with a status as long as nothing was sent, else as an event."""
        reply = Reply(request)
        try:
            # A place is taken before the body is read: so many bodies at most are in memory.
            with self._generator.admitted():
                async with self._limited() as limit:
                    return await self._generate(request, api, reply, limit)
        except RefusalError as refusal:
            return await reply.refuse(_in_our_names(HttpError.of(refusal)))
        except HttpError as error:
            return await reply.refuse(error)
        except ConnectionError:
            # The client is gone.
            raise
        except Exception:
            log.exception("http_request_failed", path=request.path)
            return await reply.refuse(HttpError(500, "internal error; the gateway's log has more"))

    @asynccontextmanager
    async def _limited(self) -> AsyncIterator[asyncio.Timeout]:
        """Raise RefusalError when the time is over that the request has, or the gateway."""
        try:
            async with asyncio.timeout(0 if self._stopping else None) as limit:
                with self._running(limit):
                    yield limit
        except TimeoutError:
            if self._stopping:
                raise RefusalError(StatusCode.UNAVAILABLE, "the gateway stops") from None
            raise RefusalError(StatusCode.DEADLINE_EXCEEDED, "timeout_s passed") from None

    @contextmanager
    def _running(self, limit: asyncio.Timeout) -> Iterator[None]:
        self._limits.add(limit)
        self._idle.clear()
        try:
            yield
        finally:
            self._limits.remove(limit)
            if not self._limits:
                self._idle.set()

    async def _generate(
        self, request: web.Request, api: Api, reply: Reply, limit: asyncio.Timeout
    ) -> web.StreamResponse:
        # In a thread, as gRPC's requests are read by one: a body may be megabytes.
        asked = await asyncio.to_thread(parse, await _body(request), api.ask)
        self._check_model(asked.model)
        if asked.timeout_s is not None:
            limit.reschedule(asyncio.get_running_loop().time() + asked.timeout_s)
        asked.generation.request_id = _request_id(request)
        envelope = Envelope(api, asked, self._generator.model_name, self._texts)
        async with aclosing(self._generator.generate(asked.generation)) as responses:
            if asked.stream:
                return await _streamed(responses, envelope, reply, asked)
            whole = [response async for response in responses]
        return answered(envelope.whole(whole), _id_headers(whole[0]))

    def _check_model(self, model: str | None) -> None:
        """Raise HttpError for the name of a model that is not here. No name is ours."""
        ours = self._generator.model_name
        if model not in (None, ours):
            raise HttpError(
                404,
                f"no model {model!r:.80}; this gateway serves {ours!r}",
                param="model",
                code="model_not_found",
            )


def _library_log() -> logging.Logger:
    """Return aiohttp's own log, without a traceback for everyone who does not speak HTTP."""
    logger = logging.getLogger("aiohttp.server")
    logger.addFilter(_is_ours)
    return logger


def _is_ours(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


async def _streamed(
    responses: AsyncIterator[pb.GenerateResponse], envelope: Envelope, reply: Reply, asked: Asked
) -> web.StreamResponse:
    """Send a chunk a round."""
    async for response in responses:
        await reply.send(envelope.chunk(response), _id_headers(response))
    if asked.include_usage:
        await reply.send(envelope.totals(response), {})
    return await reply.end()


async def _body(request: web.Request) -> bytes:
    """Read a body of bounded size in bounded time. Raises HttpError."""
    if request.content_type != "application/json":
        # Also what keeps web pages out: a browser asks before it sends JSON to another's server.
        kind = request.content_type
        raise HttpError(415, f"content-type must be application/json, got {kind!r:.80}")
    if (request.content_length or 0) > MAX_BODY:
        raise HttpError(413, _too_large(f"{request.content_length} bytes"))
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise HttpError(413, _too_large("more")) from None
    except web.RequestPayloadError as error:
        raise HttpError(400, f"the body is broken: {error}") from None
    except TimeoutError:
        raise HttpError(408, f"the body did not come within {_BODY_TIMEOUT_S:.0f} s") from None


def _too_large(got: str) -> str:
    return f"a body has at most {MAX_BODY} bytes, got {got}"


def _request_id(request: web.Request) -> str:
    """Return the client's id if it is one for us; else none, and one is drawn."""
    with suppress(ValueError):
        return check_id("X-Request-Id", request.headers.get("X-Request-Id", ""))
    return ""


def _id_headers(response: pb.GenerateResponse) -> dict[str, str]:
    return {"X-Request-Id": response.request_id}


def _in_our_names(error: HttpError) -> HttpError:
    for theirs, ours in _NAMES.items():
        error.message = error.message.replace(theirs, ours)
    return error


@web.middleware
async def _in_openai_words(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Refuse in one shape what no handler refused: another path, another method."""
    try:
        return await handler(request)
    except HttpError as error:
        return refused(error)
    except web.HTTPException as error:
        return refused(
            HttpError(error.status, f"{request.method} {request.path:.80}: {error.reason}")
        )
