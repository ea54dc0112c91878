"""Everyone's turn comes, steps keep their bounds, and no page is ever in two hands.

A cache of tokens stands for the real one: a row finds in its session's pages what its text says.
"""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kernels import tree
from protos.messages import DraftTree, SamplingParams
from target_service.kept_rows import KeptRows
from target_service.kv_memory import PAGE_LEN, KvMemory, slots_of
from target_service.scheduler import QueueFullError, Scheduler
from target_service.session import Rows, Session

CHUNK_LEN = 40
STEP_ROWS = 110
NUM_PAGES = 7
MAX_SESSIONS = 12
MAX_NEW = 60
# With the largest tree behind it, it fits the cache alone.
LONGEST = NUM_PAGES * PAGE_LEN - MAX_NEW - 64 - 64
VOCAB = 50


def session_of(session_id: str, prompt_len: int = 1, priority: int = 0, first: int = 1) -> Session:
    """A session whose prompt begins like that of every other with the same `first` token."""
    prompt = [first, *(i % VOCAB for i in range(prompt_len - 1))]
    return Session(session_id, prompt, SamplingParams(), MAX_NEW, VOCAB, priority=priority)


def new_scheduler(num_pages: int = NUM_PAGES, max_sessions: int = MAX_SESSIONS) -> Scheduler:
    memory = KvMemory(num_pages)
    return Scheduler(memory, step_rows=STEP_ROWS, chunk_len=CHUNK_LEN, max_sessions=max_sessions)


class TokenCache:
    """What an engine would leave in the pages, token for token."""

    def __init__(self, num_pages: int) -> None:
        self.slots: list[int | None] = [None] * (num_pages * PAGE_LEN)

    def run(self, rows: Rows) -> None:
        """Look for the prefix, and write the rows behind it."""
        prefix = slots_of(rows.pages, range(rows.prefix_len))
        assert [self.slots[slot] for slot in prefix] == rows.session.tokens[: rows.prefix_len]
        written = slots_of(rows.pages, range(rows.prefix_len, rows.num_slots))
        for slot, token in zip(written, rows.tokens, strict=True):
            self.slots[slot] = token

    def keep(self, rows: Rows, path: list[int]) -> None:
        """Compact an accepted path."""
        moves = KeptRows(rows, 0, path).moves()
        for (_, target), token in zip(
            moves, [self.slots[source] for source, _ in moves], strict=True
        ):
            self.slots[target] = token


class SchedulerMachine(RuleBasedStateMachine):
    """Any order of openings, steps, verdicts, trees, silences and closings.

    A step runs from `schedule` to `finish`. `waits` counts the steps since a session was ready.
    """

    @initialize()
    def start(self):
        self.scheduler = new_scheduler()
        self.cache = TokenCache(NUM_PAGES)
        self.open_sessions: list[Session] = []
        self.running: list[Rows] = []
        self.names = iter(range(10**6))
        self.now = 0.0

    @precondition(lambda self: len(self.open_sessions) < MAX_SESSIONS)
    @rule(
        prompt_len=st.integers(1, LONGEST),
        priority=st.sampled_from([0, 0, 1]),
        first=st.integers(1, 2),
    )
    def open(self, prompt_len, priority, first):
        session = session_of(f"s{next(self.names)}", prompt_len, priority, first)
        self.scheduler.open(session)
        self.open_sessions.append(session)

    @precondition(lambda self: len(self.open_sessions) == MAX_SESSIONS)
    @rule()
    def open_one_too_many(self):
        with pytest.raises(QueueFullError, match="12 of 12 sessions are open"):
            self.scheduler.open(session_of("extra"))

    @precondition(lambda self: 0 < len(self.open_sessions) < MAX_SESSIONS)
    @rule(which=st.integers(0, MAX_SESSIONS))
    def open_a_used_id(self, which):
        used = self.open_sessions[which % len(self.open_sessions)].session_id
        with pytest.raises(KeyError, match=used):
            self.scheduler.open(session_of(used))

    @precondition(lambda self: not self.running)
    @rule()
    def schedule(self):
        self.running = self.scheduler.schedule(self.now)
        sessions = [rows.session for rows in self.running]
        assert len(set(sessions)) == len(sessions)
        assert sum(len(rows.tokens) for rows in self.running) <= STEP_ROWS
        assert sum(rows.num_prompt_rows for rows in self.running) <= CHUNK_LEN
        for rows in self.running:
            assert rows.session in self.open_sessions
            assert rows == replace(rows.session.next_rows(CHUNK_LEN), **self.as_scheduled(rows))
            self.cache.run(rows)

    @staticmethod
    def as_scheduled(rows: Rows) -> dict[str, object]:
        """What the room left in the step decides; everything else is the session's own."""
        if rows.root is not None:
            return {"pages": rows.pages}
        return {"pages": rows.pages, "tokens": rows.tokens, "parents": rows.parents, "root": None}

    @precondition(lambda self: self.running)
    @rule(accepted=st.integers(0, 4))
    def finish(self, accepted):
        """Sessions may have been closed meanwhile; of every other the text grows."""
        for rows in self.running:
            if rows.session in self.open_sessions:
                self.commit(rows, accepted)
        self.running = []

    def commit(self, rows: Rows, accepted: int) -> None:
        session, goes_on = rows.session, True
        if rows.root is None:
            session.advance(len(rows.tokens))
        else:
            tokens, parents = rows.tree
            path = list(max(tree.paths(parents), key=len))[1 : 1 + accepted]
            self.cache.keep(rows, path)
            goes_on = session.commit([*(tokens[node] for node in path), 7])
        self.scheduler.computed(session)
        if goes_on:
            self.scheduler.ready(session)
        else:
            self.scheduler.silent(session, self.now)

    @rule(
        which=st.integers(0, MAX_SESSIONS),
        nodes=st.sampled_from([0, 1, 5, 63]),
        bushy=st.booleans(),
    )
    def offer(self, which, nodes, bushy):
        if not self.open_sessions:
            return
        session = self.open_sessions[which % len(self.open_sessions)]
        if session.tree is None and session.num_new_tokens < MAX_NEW:
            parents = (-1, *(node // 2 if bushy else node for node in range(nodes)))
            tokens = (session.tokens[-1], *(node % VOCAB for node in range(nodes)))
            assert session.offer(DraftTree(session.committed_len, tokens, parents))
            self.scheduler.ready(session)

    @rule(which=st.integers(0, MAX_SESSIONS), tokens=st.integers(1, 9))
    def run(self, which, tokens):
        if self.open_sessions:
            session = self.open_sessions[which % len(self.open_sessions)]
            if session.run(session.committed_len + tokens):
                self.scheduler.ready(session)

    @rule(seconds=st.sampled_from([0.1, 2.0]))
    def pass_time(self, seconds):
        self.now += seconds

    @rule(which=st.integers(0, MAX_SESSIONS))
    def close(self, which):
        if self.open_sessions:
            self.scheduler.close(self.open_sessions.pop(which % len(self.open_sessions)))

    @invariant()
    def counts_are_exact(self):
        if not hasattr(self, "scheduler"):
            return
        memory, running = self.scheduler.memory, {rows.session for rows in self.running}
        ready = [one for one in self.open_sessions if one.tree is not None and one not in running]
        assert self.scheduler.num_sessions == len(self.open_sessions)
        assert self.scheduler.num_ready == len(ready)
        held = {page for one in self.open_sessions for page in one.memory.pages}
        assert memory.num_held == len(held)
        for one in self.open_sessions:
            assert len(one.memory.pages) * PAGE_LEN >= one.cached_len

    def teardown(self):
        """Whatever happened: everyone who is ready is served, and every page comes back."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(1000):
            if not (self.running or self.scheduler.num_ready):
                break
            if not self.running:
                self.schedule()
            if not self.running:
                self.now += 1.5
                self.schedule()
                assert self.running, "somebody is ready and nobody can run"
            self.finish(0)
        assert not self.scheduler.num_ready
        for session in self.open_sessions:
            self.scheduler.close(session)
        assert self.scheduler.memory.num_held == 0


TestAnyOrderOfEvents = SchedulerMachine.TestCase
TestAnyOrderOfEvents.settings = settings(max_examples=150, stateful_step_count=60)


def advance(scheduler: Scheduler, rows: Rows) -> None:
    """Let a chunk of a prompt be computed."""
    rows.session.advance(len(rows.tokens))
    scheduler.computed(rows.session)
    scheduler.ready(rows.session)


def commit(scheduler: Scheduler, rows: Rows, now: float = 0.0) -> None:
    rows.session.commit([7])
    scheduler.computed(rows.session)
    scheduler.silent(rows.session, now)


def test_nobody_ready_is_no_step():
    assert new_scheduler().schedule(0.0) == []


def test_all_that_are_ready_share_a_step():
    scheduler = new_scheduler()
    for name in "abc":
        scheduler.open(session_of(name, 10))
    assert [rows.session.session_id for rows in scheduler.schedule(0.0)] == ["a", "b", "c"]


def test_prompts_share_a_chunk_and_take_turns():
    scheduler = new_scheduler()
    scheduler.open(long := session_of("long", 130, first=1))
    scheduler.open(short := session_of("short", 12, first=2))
    (first,) = scheduler.schedule(0.0)
    assert (first.session, len(first.tokens)) == (long, CHUNK_LEN)
    advance(scheduler, first)
    of_short, of_long = scheduler.schedule(0.0)
    assert (of_short.session, len(of_short.tokens), of_short.root) == (short, 12, 11)
    assert (of_long.session, len(of_long.tokens)) == (long, CHUNK_LEN - 11)


def test_a_long_prompt_does_not_keep_trees_waiting():
    scheduler = new_scheduler()
    scheduler.open(one := session_of("one"))
    (rows,) = scheduler.schedule(0.0)
    commit(scheduler, rows)
    scheduler.open(long := session_of("long", 130, first=2))
    advance(scheduler, scheduler.schedule(0.0)[0])
    assert one.offer(DraftTree.plain(2, 7))
    scheduler.ready(one)
    assert [rows.session for rows in scheduler.schedule(0.0)] == [long, one]


def test_who_does_not_fit_a_step_is_first_in_the_next():
    scheduler = new_scheduler()
    sessions = [session_of(name) for name in "abc"]
    for session in sessions:
        scheduler.open(session)
    for rows in scheduler.schedule(0.0):
        commit(scheduler, rows)
    for session in sessions:
        tokens = (7, *range(40))
        assert session.offer(DraftTree.chain(2, tokens))
        scheduler.ready(session)
    steps = [[rows.session.session_id for rows in scheduler.schedule(0.0)] for _ in range(2)]
    assert steps == [["a", "b"], ["c"]]


def test_a_higher_priority_goes_first():
    scheduler = new_scheduler()
    scheduler.open(session_of("usual", 100, first=1))
    scheduler.open(session_of("urgent", 100, priority=1, first=2))
    assert [rows.session.session_id for rows in scheduler.schedule(0.0)] == ["urgent"]


class TestShortPages:
    """Three pages, and two sessions that need two of them each."""

    def start(self, priorities=(0, 0)):
        scheduler = new_scheduler(num_pages=3)
        first, second = (
            session_of(name, 62, priority, first=number)
            for number, (name, priority) in enumerate(
                zip(["first", "second"], priorities, strict=True)
            )
        )
        for session in (first, second):
            scheduler.open(session)
            while session.tree is not None:
                (rows,) = [rows for rows in scheduler.schedule(0.0) if rows.session is session]
                if rows.root is None:
                    advance(scheduler, rows)
                else:
                    commit(scheduler, rows)
        return scheduler, first, second

    def grow(self, scheduler, session, now=0.0):
        """Offer a tree that needs another page; return what can run."""
        assert session.offer(DraftTree.chain(session.committed_len, (7, *range(20))))
        scheduler.ready(session)
        return [rows.session for rows in scheduler.schedule(now)]

    def test_who_came_last_gives_up_its_pages(self):
        scheduler, first, second = self.start()
        assert self.grow(scheduler, second) == [second]
        commit(scheduler, replace(second.next_rows(0), session=second))
        assert self.grow(scheduler, first) == [first]
        assert (second.memory.pages, second.cached_len) == ([], 0)
        assert scheduler.num_preempted == 1

    def test_who_came_last_waits(self):
        scheduler, first, second = self.start()
        assert self.grow(scheduler, first) == [first]
        commit(scheduler, first.next_rows(0))
        assert self.grow(scheduler, second) == []
        assert scheduler.num_ready == 1
        scheduler.close(first)
        assert [rows.session for rows in scheduler.schedule(0.0)] == [second]

    def test_unless_who_came_first_has_long_been_silent(self):
        scheduler, first, second = self.start()
        assert self.grow(scheduler, first) == [first]
        commit(scheduler, first.next_rows(0), now=5.0)
        assert self.grow(scheduler, second, now=5.5) == []
        assert [rows.session for rows in scheduler.schedule(6.5)] == [second]
        assert first.memory.pages == []

    def test_who_cannot_have_pages_takes_no_room_of_those_who_can(self):
        scheduler, first, second = self.start()
        for number in range(5):
            scheduler.open(session_of(f"late{number}", 150, first=10 + number))
        assert scheduler.schedule(0.0) == []
        assert self.grow(scheduler, second) == [second]
        commit(scheduler, second.next_rows(0))
        assert self.grow(scheduler, first) == [first]

    def test_who_cannot_have_all_pages_robs_nobody(self):
        scheduler, first, second = self.start(priorities=(1, 0))
        scheduler.open(late := session_of("late", 150, first=10))
        assert scheduler.schedule(0.0) == []
        assert [len(one.memory.pages) for one in (first, second, late)] == [1, 1, 0]
        assert scheduler.num_preempted == 0

    def test_priority_counts_more_than_coming_first(self):
        scheduler, first, second = self.start(priorities=(0, 1))
        assert self.grow(scheduler, first) == [first]
        commit(scheduler, first.next_rows(0))
        assert self.grow(scheduler, second) == [second]
        assert first.memory.pages == []


def test_an_id_is_free_again_after_its_session_closed():
    scheduler = new_scheduler(max_sessions=1)
    scheduler.open(first := session_of("a"))
    scheduler.close(first)
    scheduler.open(second := session_of("a"))
    assert [rows.session for rows in scheduler.schedule(0.0)] == [second]
