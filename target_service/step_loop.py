"""The target's step, over and over: schedule, run, commit, tell.

Owns the live sessions. The engine blocks in a thread of its own; everything else happens on the
event loop, so no lock is needed. What makes a session ready starts its step at once, and the end of
a step starts the next: nothing waits for a turn of the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import structlog

from protos.messages import DraftTree, Verdict
from target_service.decode_log import DecodeLog
from target_service.engine import Engine, Outcome
from target_service.scheduler import Scheduler
from target_service.session import Rows, Session
from target_service.step_thread import StepThread
from target_service.taps import TapHub
from target_service.totals import Totals

log = structlog.get_logger()

# How soon to look again whether somebody gave up pages, where nobody can run without them.
_RETRY_S = 0.1


@dataclass(eq=False)
class LiveSession:
    """A session, and where its verdicts go."""

    session: Session
    cached_prompt_tokens: int
    verdicts: asyncio.Queue[Verdict | Exception | None] = field(default_factory=asyncio.Queue)
    waiting_since_ns: int = field(default_factory=time.perf_counter_ns)


class StepLoop:
    """Runs steps while any session is ready."""

    def __init__(self, engine: Engine, scheduler: Scheduler, hub: TapHub) -> None:
        self._engine = engine
        self._scheduler = scheduler
        self._hub = hub
        self._live: dict[Session, LiveSession] = {}
        self._running = False
        self._thread = StepThread(engine)
        self._retry: asyncio.TimerHandle | None = None
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._decode_log = DecodeLog()
        self.totals = Totals()

    @property
    def is_running(self) -> bool:
        """Whether a step runs now."""
        return self._running

    async def open(self, session: Session, *, expect_taps: bool) -> LiveSession:
        """Take a session in and let its prompt prefill.

        Raises QueueFullError, or KeyError for an id in use.
        """
        self._scheduler.open(session)
        if not self._live:
            self._decode_log.restart()
        live = LiveSession(session, self._scheduler.memory.num_known(session.tokens))
        self._live[session] = live
        self.totals.count_prompt(session.prompt_len, live.cached_prompt_tokens)
        await self._hub.open(session, expect=expect_taps)
        self._start_step()
        return live

    def verify(self, live: LiveSession, tree: DraftTree) -> None:
        """Queue a tree. A stale one is dropped. Raises ValueError for a wrong one."""
        if live.session.offer(tree):
            self._ready(live)
            self._start_step()

    def run(self, live: LiveSession, until_len: int) -> None:
        """Let a session decode plainly until so many tokens are committed."""
        if live.session.run(until_len):
            self._ready(live)
            self._start_step()

    def close(self, live: LiveSession) -> None:
        """Free a session. A step that runs may still write to its pages: no other has them yet."""
        self._scheduler.close(live.session)
        self._hub.close(live.session)
        self._live.pop(live.session, None)
        if not self._live:
            self._decode_log.flush(self._scheduler)
        # Somebody may have waited for its pages.
        self._start_step()

    async def serve(self) -> None:
        """Wait for ever. Raises what broke the loop itself, after which no step will run."""
        try:
            await self._broken
        finally:
            self._thread.stop()

    def _ready(self, live: LiveSession) -> None:
        live.waiting_since_ns = time.perf_counter_ns()
        self._scheduler.ready(live.session)

    def _start_step(self) -> None:
        """Start the next step, unless one runs or nobody can run."""
        if self._running:
            return
        batch = self._scheduler.schedule(time.monotonic())
        if batch:
            self._running = True
            started_ns = time.perf_counter_ns()
            self._thread.submit(batch, partial(self._end_step, batch, started_ns))
        elif self._scheduler.num_ready:
            self._retry_later()

    def _retry_later(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        self._retry = asyncio.get_running_loop().call_later(_RETRY_S, self._start_step)

    def _end_step(
        self, batch: Sequence[Rows], started_ns: int, outcomes: Sequence[Outcome | Exception]
    ) -> None:
        try:
            self._running = False
            self.totals.count_step(batch)
            for rows, outcome in zip(batch, outcomes, strict=True):
                live = self._live.get(rows.session)
                if live is not None:
                    self._tell(live, rows, outcome, started_ns)
            self._start_step()
        except Exception as error:
            if not self._broken.done():
                self._broken.set_exception(error)

    def _tell(
        self, live: LiveSession, rows: Rows, outcome: Outcome | Exception, started_ns: int
    ) -> None:
        if isinstance(outcome, Exception):
            log.error("step_failed", session_id=rows.session.session_id, exc_info=outcome)
            live.verdicts.put_nowait(outcome)
            return
        queued_us = max(started_ns - live.waiting_since_ns, 0) // 1000
        goes_on = self._commit(rows, outcome)
        self._tell_taps(rows, outcome)
        if outcome.verdict is not None:
            timings = replace(outcome.verdict.timings, queue_us=queued_us)
            live.verdicts.put_nowait(replace(outcome.verdict, timings=timings))
            self.totals.count_verdict(outcome.verdict)
            self._decode_log.count(rows, outcome.verdict, self._scheduler)
        if goes_on:
            self._ready(live)
        else:
            self._scheduler.silent(rows.session, time.monotonic())

    def _commit(self, rows: Rows, outcome: Outcome) -> bool:
        """Make a step's tokens final. Returns whether the session has more to compute."""
        session, goes_on = rows.session, True
        if outcome.verdict is None:
            session.advance(len(rows.tokens))
        else:
            goes_on = session.commit(outcome.verdict.tokens)
        self._scheduler.computed(session)
        return goes_on

    def _tell_taps(self, rows: Rows, outcome: Outcome) -> None:
        """Send taps before the verdict, because their way to a tree is longer; each row's once."""
        session, first, end = rows.session, rows.prefix_len, rows.session.cached_len
        if session.told_len < first and self._hub.listens(session):
            known = range(session.told_len, first)
            stored_TX = self._engine.stored_taps(session.memory.pages, known)
            self._hub.publish(session, session.told_len, stored_TX)
        begin = max(session.told_len, first)
        if begin < end:
            self._hub.publish(session, begin, outcome.taps_KX[begin - first :])
