"""The thread in which steps block, and the shortest way into it and back.

A step begins when the message that asks for it is read, and what it found is told on the event
loop: one wake-up each way, where an executor's futures take several.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from target_service.engine import Outcome, StepEngine
from target_service.session import Rows

# For each session what its step found, or what it raised.
Told = Callable[[Sequence[Outcome | Exception]], None]
Step = tuple[Sequence[Rows], asyncio.AbstractEventLoop, Told]


class StepThread:
    """Runs one step after another."""

    def __init__(self, engine: StepEngine) -> None:
        self._engine = engine
        self._steps: SimpleQueue[Step | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, batch: Sequence[Rows], told: Told) -> None:
        """Run a step; `told` is then called on the running loop, with an outcome a session."""
        self._steps.put((batch, asyncio.get_running_loop(), told))

    def stop(self) -> None:
        """Wait for the step that runs, and end the thread.

        A thread that still ran while the interpreter ends would be torn out of native code.
        """
        self._steps.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (step := self._steps.get()) is not None:
            batch, loop, told = step
            outcomes = self._outcomes(batch)
            if not loop.is_closed():
                loop.call_soon_threadsafe(told, outcomes)

    def _outcomes(self, batch: Sequence[Rows]) -> Sequence[Outcome | Exception]:
        """Run a step. If it fails, its sessions run one by one: only who fails alone is told so."""
        try:
            return self._engine.step(batch)
        except Exception as error:
            if len(batch) == 1:
                return [error]
        return [outcome for rows in batch for outcome in self._outcomes([rows])]
