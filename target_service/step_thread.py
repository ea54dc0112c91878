"""The thread in which steps block, and the shortest way into it and back.

A step begins when the message that asks for it is read, and what it found is told on the event
loop: one wake-up each way, where an executor's futures take several.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from queue import SimpleQueue

from target_service.engine import Engine, Outcome
from target_service.kv_cache import KvCache
from target_service.session import Rows

Told = Callable[[Outcome | Exception], None]
Step = tuple[Rows, KvCache, int, asyncio.AbstractEventLoop, Told]


class StepThread:
    """Runs one step after another."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._steps: SimpleQueue[Step | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, rows: Rows, cache: KvCache, queued_us: int, told: Told) -> None:
        """Run a step; `told` is then called on the running loop, with what it raised if it did."""
        self._steps.put((rows, cache, queued_us, asyncio.get_running_loop(), told))

    def stop(self) -> None:
        """Wait for the step that runs, and end the thread.

        A thread that still ran while the interpreter ends would be torn out of native code.
        """
        self._steps.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (step := self._steps.get()) is not None:
            rows, cache, queued_us, loop, told = step
            try:
                outcome: Outcome | Exception = self._engine.step(rows, cache, queued_us)
            except Exception as error:
                outcome = error
            if not loop.is_closed():
                loop.call_soon_threadsafe(told, outcome)
