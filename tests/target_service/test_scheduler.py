"""The line of ready sessions: everyone's turn comes, and only once before everyone else's."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protos.messages import DraftTree, SamplingParams
from target_service.scheduler import QueueFullError, Scheduler
from target_service.session import Session

CHUNK_LEN = 4
MAX_SESSIONS = 3


def session_of(session_id: str, prompt_len: int = 1) -> Session:
    return Session(session_id, [1] * prompt_len, SamplingParams(), 1000, 50)


class SchedulerMachine(RuleBasedStateMachine):
    """Any order of openings, steps, trees and closings.

    `turns[a][b]` counts b's turns since a became ready. A session that was scheduled runs until
    `finish`; as with one engine, at most one runs.
    """

    @initialize()
    def start(self):
        self.scheduler = Scheduler(chunk_len=CHUNK_LEN, max_sessions=MAX_SESSIONS)
        self.open_sessions: list[Session] = []
        self.turns: dict[Session, dict[Session, int]] = {}
        self.running = None
        self.names = iter(range(10**6))

    @precondition(lambda self: len(self.open_sessions) < MAX_SESSIONS)
    @rule(prompt_len=st.integers(1, 20))
    def open(self, prompt_len):
        session = session_of(f"s{next(self.names)}", prompt_len)
        self.scheduler.open(session)
        self.open_sessions.append(session)
        self.turns[session] = {}

    @precondition(lambda self: len(self.open_sessions) == MAX_SESSIONS)
    @rule()
    def open_one_too_many(self):
        with pytest.raises(QueueFullError, match="3 of 3 sessions are open"):
            self.scheduler.open(session_of("extra"))

    @precondition(lambda self: 0 < len(self.open_sessions) < MAX_SESSIONS)
    @rule(which=st.integers(0, MAX_SESSIONS))
    def open_a_used_id(self, which):
        used = self.open_sessions[which % len(self.open_sessions)].session_id
        with pytest.raises(KeyError, match=used):
            self.scheduler.open(session_of(used))

    @precondition(lambda self: self.running is None)
    @rule()
    def schedule(self):
        rows = self.scheduler.schedule()
        if rows is None:
            assert not self.turns
            return
        session = rows.session
        assert self.turns.pop(session) is not None
        for waits in self.turns.values():
            waits[session] = waits.get(session, 0) + 1
            assert waits[session] == 1, "overtaken twice"
        self.running = rows

    @precondition(lambda self: self.running is not None)
    @rule()
    def finish(self):
        """A chunk comes back to the end of the line, even if its session was closed meanwhile."""
        rows, self.running = self.running, None
        session = rows.session
        if rows.root is not None:
            session.commit([2])
            return
        session.advance(len(rows.tokens))
        self.ready(session)

    @rule(which=st.integers(0, MAX_SESSIONS))
    def offer(self, which):
        if self.open_sessions:
            session = self.open_sessions[which % len(self.open_sessions)]
            if session.tree is None:
                session.offer(DraftTree.plain(session.committed_len, session.tokens[-1]))
                self.ready(session)

    def ready(self, session):
        self.scheduler.ready(session)
        if session in self.open_sessions:
            self.turns[session] = {}

    @rule(which=st.integers(0, MAX_SESSIONS))
    def close(self, which):
        if self.open_sessions:
            session = self.open_sessions.pop(which % len(self.open_sessions))
            self.turns.pop(session, None)
            self.scheduler.close(session)

    @invariant()
    def counts_are_exact(self):
        if hasattr(self, "scheduler"):
            assert self.scheduler.num_sessions == len(self.open_sessions)
            assert self.scheduler.num_ready == len(self.turns)
            for session in self.open_sessions:
                assert self.scheduler.session(session.session_id) is session


TestAnyOrderOfEvents = SchedulerMachine.TestCase


def test_nobody_ready_is_no_step():
    assert Scheduler(chunk_len=4, max_sessions=1).schedule() is None


def test_a_long_prompt_delays_another_session_by_one_chunk():
    scheduler = Scheduler(chunk_len=4, max_sessions=2)
    long, short = session_of("long", 100), session_of("short")
    scheduler.open(long)
    first = scheduler.schedule()
    scheduler.open(short)
    long.advance(len(first.tokens))
    scheduler.ready(long)
    assert len(first.tokens) == 4
    assert scheduler.schedule().session is short
    assert scheduler.schedule().session is long


def test_an_id_is_free_again_after_its_session_closed():
    scheduler = Scheduler(chunk_len=4, max_sessions=1)
    scheduler.open(first := session_of("a"))
    scheduler.close(first)
    scheduler.open(second := session_of("a"))
    assert scheduler.session("a") is second
    assert scheduler.schedule().session is second
