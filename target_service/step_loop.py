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
from protos.pairing import Pairing
from target_service.company import Company
from target_service.decode_log import DecodeLog
from target_service.engine import Outcome, StepEngine
from target_service.scheduler import Scheduler
from target_service.session import Rows, Session
from target_service.step_thread import StepThread
from target_service.taps import Frame, Subscription, TapHub
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

    def __init__(self, engine: StepEngine, scheduler: Scheduler, hub: TapHub) -> None:
        self._engine = engine
        self._scheduler = scheduler
        self._hub = hub
        self._live: dict[Session, LiveSession] = {}
        self._running = False
        self._thread = StepThread(engine)
        self._retry: asyncio.TimerHandle | None = None
        self._company = Company()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.totals = Totals()
        self._decode_log = DecodeLog(self.totals, scheduler)

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
            self._company.came_back(live.session, time.monotonic())
            self._ready(live)
            self._start_step()

    def run(self, live: LiveSession, until_len: int) -> None:
        """Let a session decode plainly until so many tokens are committed."""
        if live.session.run(until_len):
            self._company.stays_away(live.session)
            self._ready(live)
            self._start_step()

    async def subscribe_from_start(
        self, session_id: str, pairing: Pairing, known_len: int, min_rows: int
    ) -> tuple[Subscription, Sequence[int], int]:
        """As `TapHub.subscribe`, with the rows that were told before, if the session has them.

        Takes nothing that is held back for others.
        """
        subscription, session = await self._hub.subscribe_beside(
            session_id, pairing, known_len, min_rows
        )
        known, missed = range(session.told_len), session.tokens[known_len:]
        if session.cached_len < session.told_len:
            return subscription, missed, session.told_len
        if known:
            taps_TX = self._engine.stored_taps(session.memory.pages, known)
            tokens = tuple(session.tokens[1 : len(known) + 1])
            subscription.put(Frame(0, session.committed_len, tokens, taps_TX))
        return subscription, missed, 0

    def close(self, live: LiveSession) -> None:
        """Free a session. A step that runs may still write to its pages: no other has them yet."""
        self._scheduler.close(live.session)
        self._hub.close(live.session)
        self._live.pop(live.session, None)
        self._company.forget(live.session)
        if not self._live:
            self._decode_log.flush()
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
        wait_s = self._company.waits_for_s(time.monotonic()) if self._scheduler.num_ready else 0.0
        if wait_s:
            self._look_again(wait_s)
            return
        batch = self._scheduler.schedule(time.monotonic())
        if batch:
            self._running = True
            started_ns = time.perf_counter_ns()
            self._thread.submit(batch, partial(self._end_step, batch, started_ns))
        elif self._scheduler.num_ready:
            self._look_again(_RETRY_S)

    def _look_again(self, seconds: float) -> None:
        if self._retry is not None:
            self._retry.cancel()
        self._retry = asyncio.get_running_loop().call_later(seconds, self._start_step)

    def _end_step(
        self, batch: Sequence[Rows], started_ns: int, outcomes: Sequence[Outcome | Exception]
    ) -> None:
        """Make a step's tokens final, start the next one, and only then tell the verdicts."""
        try:
            self._running = False
            self.totals.count_step(batch)
            ended = [
                (live, outcome)
                for rows, outcome in zip(batch, outcomes, strict=True)
                if (live := self._live.get(rows.session)) is not None
            ]
            verdicts = [(live, self._commit(live, outcome, started_ns)) for live, outcome in ended]
            self._expect_back([live.session for live, _ in ended], started_ns)
            self._start_step()
            for live, verdict in verdicts:
                self._tell(live, verdict)
            self._decode_log.tick()
        except Exception as error:
            if not self._broken.done():
                self._broken.set_exception(error)

    def _expect_back(self, sessions: Sequence[Session], started_ns: int) -> None:
        away = [session for session in sessions if session.tree is None]
        step_s = (time.perf_counter_ns() - started_ns) / 1e9
        self._company.step_ended(away, self._scheduler.ready_for_a_step, time.monotonic(), step_s)

    def _commit(
        self, live: LiveSession, outcome: Outcome | Exception, started_ns: int
    ) -> Verdict | Exception | None:
        """Take in what a step found for a session; return what its client is to be told."""
        session = live.session
        if isinstance(outcome, Exception):
            log.error("step_failed", session_id=session.session_id, exc_info=outcome)
            return outcome
        verdict, queued_us = outcome.verdict, max(started_ns - live.waiting_since_ns, 0) // 1000
        if verdict is None:
            session.advance(len(outcome.rows.tokens))
            goes_on = True
        else:
            goes_on = session.commit(verdict.tokens)
        self._scheduler.computed(session)
        self._tell_taps(outcome)
        if goes_on:
            self._ready(live)
        else:
            self._scheduler.silent(session, time.monotonic())
        return verdict and replace(verdict, timings=replace(verdict.timings, queue_us=queued_us))

    def _tell(self, live: LiveSession, told: Verdict | Exception | None) -> None:
        if told is not None:
            live.verdicts.put_nowait(told)
        if isinstance(told, Verdict):
            self.totals.count_verdict(told)

    def _tell_taps(self, outcome: Outcome) -> None:
        """Send taps, of each row once: before the verdict, because their way to a tree is longer.

        Stored ones are read before the next step, in which the session may lose its pages.
        """
        session, first = outcome.rows.session, outcome.rows.prefix_len
        if session.told_len < first and self._hub.listens(session):
            known = range(session.told_len, first)
            stored_TX = self._engine.stored_taps(session.memory.pages, known)
            self._hub.publish(session, session.told_len, stored_TX)
        begin = max(session.told_len, first)
        if begin < session.cached_len:
            self._hub.publish(session, begin, outcome.taps_KX[begin - first :])
