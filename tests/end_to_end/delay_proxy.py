"""A TCP proxy that holds every byte back for a while: a slow network between two services."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

_CHUNK = 1 << 16


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Pass bytes on in order, each `delay_s` after it came."""
    loop = asyncio.get_running_loop()
    pending: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def receive() -> None:
        while data := await reader.read(_CHUNK):
            pending.put_nowait((loop.time() + delay_s, data))
        pending.put_nowait((loop.time() + delay_s, b""))

    receiving = asyncio.create_task(receive())
    try:
        while True:
            due, data = await pending.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not data:
                return
            writer.write(data)
            await writer.drain()
    finally:
        receiving.cancel()
        writer.close()


async def _serve(target: str, delay_s: float, port: asyncio.Future[int]) -> None:
    host, _, target_port = target.rpartition(":")

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            there_reader, there_writer = await asyncio.open_connection(host, int(target_port))
            await asyncio.gather(
                _pump(reader, there_writer, delay_s), _pump(there_reader, writer, delay_s)
            )

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    port.set_result(server.sockets[0].getsockname()[1])
    async with server:
        await server.serve_forever()


@contextlib.contextmanager
def delayed(target: str, delay_s: float) -> Iterator[str]:
    """Yield the address of a proxy to `target` that delays both directions by `delay_s`."""
    loop = asyncio.new_event_loop()
    port: asyncio.Future[int] = loop.create_future()
    serving = loop.create_task(_serve(target, delay_s, port))
    loop.run_until_complete(port)
    thread = threading.Thread(target=_run_to_the_end, args=(loop, serving), daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{port.result()}"
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join()


def _run_to_the_end(loop: asyncio.AbstractEventLoop, serving: asyncio.Task[None]) -> None:
    """Serve until cancelled, then let every connection's tasks end: none may be left pending."""
    with contextlib.suppress(asyncio.CancelledError):
        loop.run_until_complete(serving)
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.close()
