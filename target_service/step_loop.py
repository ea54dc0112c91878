"""The target's step, over and over: schedule, run, commit, tell.

Owns the live sessions. The engine blocks in a thread of its own; everything else happens on the
event loop, so no lock is needed. What makes a session ready starts its step at once, and the end of
a step starts the next: nothing waits for a turn of the loop.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from functools import partial

import structlog

from protos.messages import MAX_TREE_NODES, DraftTree, Verdict
from target_service.decode_log import DecodeLog
from target_service.engine import Engine, Outcome
from target_service.kv_cache import KvCache, KvPool
from target_service.scheduler import Scheduler
from target_service.session import Rows, Session
from target_service.step_thread import StepThread
from target_service.taps import TapHub

log = structlog.get_logger()

# Behind the committed tokens lie the nodes of a tree.
SPARE_SLOTS = MAX_TREE_NODES


@dataclass(eq=False)
class LiveSession:
    """A session, what it holds, and where its verdicts go."""

    session: Session
    cache: KvCache
    verdicts: asyncio.Queue[Verdict | Exception | None] = field(default_factory=asyncio.Queue)
    waiting_since_ns: int = field(default_factory=time.perf_counter_ns)
    closed: bool = False


class StepLoop:
    """Runs steps while any session is ready."""

    def __init__(self, engine: Engine, scheduler: Scheduler, pool: KvPool, hub: TapHub) -> None:
        self._scheduler = scheduler
        self._pool = pool
        self._hub = hub
        self._live: dict[Session, LiveSession] = {}
        self._running: LiveSession | None = None
        self._thread = StepThread(engine)
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._decode_log = DecodeLog()

    async def open(self, session: Session, *, expect_taps: bool) -> LiveSession:
        """Reserve what a session may need and let its prompt prefill.

        Raises KvPoolFullError, QueueFullError, or KeyError for an id in use.
        """
        self._scheduler.open(session)
        tokens = session.prompt_len + session.max_new_tokens + SPARE_SLOTS
        try:
            live = LiveSession(session, self._pool.open(tokens))
        except BaseException:
            self._scheduler.close(session)
            raise
        if not self._live:
            self._decode_log.restart()
        self._live[session] = live
        await self._hub.open(session, expect=expect_taps)
        self._start_step()
        return live

    def verify(self, live: LiveSession, tree: DraftTree) -> None:
        """Queue a tree. A stale one is dropped. Raises ValueError for a wrong one."""
        if live.session.offer(tree):
            live.waiting_since_ns = time.perf_counter_ns()
            self._scheduler.ready(live.session)
            self._start_step()

    def close(self, live: LiveSession) -> None:
        """Free a session. Slots that a running step still writes are freed when it ends."""
        self._scheduler.close(live.session)
        self._hub.close(live.session)
        self._live.pop(live.session, None)
        live.closed = True
        if live is not self._running:
            self._pool.close(live.cache)
        if not self._live:
            self._decode_log.flush(self._scheduler)

    async def run(self) -> None:
        """Wait for ever. Raises what broke the loop itself, after which no step will run."""
        try:
            await self._broken
        finally:
            self._thread.stop()

    def _start_step(self) -> None:
        """Start the next step, unless one runs or nobody is ready."""
        if self._running is not None:
            return
        rows = self._scheduler.schedule()
        if rows is not None:
            self._running = live = self._live[rows.session]
            queued_us = (time.perf_counter_ns() - live.waiting_since_ns) // 1000
            self._thread.submit(rows, live.cache, queued_us, partial(self._end_step, rows, live))

    def _end_step(self, rows: Rows, live: LiveSession, outcome: Outcome | Exception) -> None:
        try:
            self._running = None
            if live.closed:
                self._pool.close(live.cache)
            elif isinstance(outcome, Exception):
                log.error("step_failed", session_id=rows.session.session_id, exc_info=outcome)
                live.verdicts.put_nowait(outcome)
            else:
                self._commit(rows, live, outcome)
            self._start_step()
        except Exception as error:
            if not self._broken.done():
                self._broken.set_exception(error)

    def _commit(self, rows: Rows, live: LiveSession, outcome: Outcome) -> None:
        """Make a step's tokens final and tell them, taps first: their way to a tree is longer."""
        session, verdict = rows.session, outcome.verdict
        if verdict is None:
            session.advance(outcome.num_rows)
            self._scheduler.ready(session)
        else:
            session.commit(verdict.tokens)
        self._hub.publish(session, rows.prefix_len, outcome.taps_PTH)
        if verdict is not None:
            live.verdicts.put_nowait(verdict)
            self._decode_log.count(rows, verdict, self._scheduler)
