"""The target's step, over and over: schedule, run, commit, tell.

Owns the live sessions. The engine blocks in a thread of its own; everything else happens on the
event loop, so no lock is needed.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import structlog

from kernels.linear import ROW_BLOCK
from protos.messages import MAX_TREE_NODES, DraftTree, Verdict
from target_service.decode_log import DecodeLog
from target_service.engine import Engine, Outcome
from target_service.kv_cache import KvCache, KvPool
from target_service.scheduler import Scheduler
from target_service.session import Rows, Session
from target_service.taps import TapHub

log = structlog.get_logger()

# Behind the committed tokens lie the nodes of a tree and the padding of its last row block.
SPARE_SLOTS = MAX_TREE_NODES + ROW_BLOCK


@dataclass(eq=False)
class LiveSession:
    """A session, what it holds, and where its verdicts go."""

    session: Session
    cache: KvCache
    verdicts: asyncio.Queue[Verdict | Exception | None] = field(default_factory=asyncio.Queue)
    waiting_since_ns: int = field(default_factory=time.perf_counter_ns)
    running: bool = False
    closed: bool = False


class StepLoop:
    """Runs steps while any session is ready."""

    def __init__(self, engine: Engine, scheduler: Scheduler, pool: KvPool, hub: TapHub) -> None:
        self._engine = engine
        self._scheduler = scheduler
        self._pool = pool
        self._hub = hub
        self._live: dict[Session, LiveSession] = {}
        self._awake = asyncio.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
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
        self._awake.set()
        return live

    def verify(self, live: LiveSession, tree: DraftTree) -> None:
        """Queue a tree. A stale one is dropped. Raises ValueError for a wrong one."""
        if live.session.offer(tree):
            live.waiting_since_ns = time.perf_counter_ns()
            self._scheduler.ready(live.session)
            self._awake.set()

    def close(self, live: LiveSession) -> None:
        """Free a session. Slots that a running step still writes are freed when it ends."""
        self._scheduler.close(live.session)
        self._hub.close(live.session)
        self._live.pop(live.session, None)
        live.closed = True
        if not live.running:
            self._pool.close(live.cache)
        if not self._live:
            self._decode_log.flush(self._scheduler)

    async def run(self) -> None:
        """Step for ever."""
        while True:
            rows = self._scheduler.schedule()
            if rows is None:
                self._awake.clear()
                await self._awake.wait()
            else:
                await self._step(rows)

    async def _step(self, rows: Rows) -> None:
        live = self._live[rows.session]
        queued_us = (time.perf_counter_ns() - live.waiting_since_ns) // 1000
        live.running = True
        try:
            outcome = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._engine.step, rows, live.cache
            )
            self._commit(rows, live, outcome, queued_us)
        except Exception as error:
            log.exception("step_failed", session_id=rows.session.session_id)
            live.verdicts.put_nowait(error)
        finally:
            live.running = False
            if live.closed:
                self._pool.close(live.cache)

    def _commit(self, rows: Rows, live: LiveSession, outcome: Outcome, queued_us: int) -> None:
        if live.closed:
            return
        session = rows.session
        if outcome.verdict is None:
            session.advance(outcome.num_rows)
            self._scheduler.ready(session)
        else:
            session.commit(outcome.verdict.tokens)
            timings = replace(outcome.verdict.timings, queue_us=queued_us)
            live.verdicts.put_nowait(replace(outcome.verdict, timings=timings))
            self._decode_log.count(rows, outcome.verdict, self._scheduler)
        self._hub.publish(session, rows.prefix_len, outcome.taps_PTH)
