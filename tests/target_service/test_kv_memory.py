"""Every page is accounted for, and a page that is found again holds the text that leads to it."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from target_service.kv_memory import PAGE_LEN, KvMemory, SessionPages, pages_for, slots_of

NUM_PAGES = 8
# Two texts, of which all others are made: many begin alike.
CHUNKS = [list(range(PAGE_LEN)), list(range(PAGE_LEN, 2 * PAGE_LEN))]
texts = st.lists(st.integers(0, 1), min_size=0, max_size=3)


class Writer:
    """A session that writes its text into its pages, as rows would be."""

    def __init__(self, text):
        self.text, self.mine, self.cached_len = text, SessionPages(), 0


class MemoryMachine(RuleBasedStateMachine):
    """Any order of sessions that begin, grow, lose their pages and end.

    `written` is what lies in each page: a page that others hold as well must never be written to.
    """

    @initialize()
    def start(self):
        self.memory = KvMemory(NUM_PAGES)
        self.sessions: list[Writer] = []
        self.written = {page: [None] * PAGE_LEN for page in range(NUM_PAGES)}

    @precondition(lambda self: len(self.sessions) < 4)
    @rule(parts=texts, rest=st.integers(1, PAGE_LEN))
    def begin(self, parts, rest):
        text = [token for part in parts for token in CHUNKS[part]] + [9] * rest
        one = Writer(text)
        known = self.memory.num_known(text)
        one.cached_len = self.memory.begin(one.mine, text)
        assert one.cached_len == known < len(text)
        assert len(one.mine.pages) * PAGE_LEN == one.cached_len
        self.sessions.append(one)

    @precondition(lambda self: self.sessions)
    @rule(which=st.integers(0, 99), rows=st.integers(1, 100))
    def compute(self, which, rows):
        """Write the next rows, if there are pages for them."""
        one = self.sessions[which % len(self.sessions)]
        end = min(one.cached_len + rows, len(one.text))
        could = self.memory.reserve(one.mine, end)
        if not could:
            assert not self.memory.pool.num_free
            assert not self.memory.prefixes.num_unused
            return
        assert len(one.mine.pages) >= pages_for(end)
        for slot in slots_of(one.mine.pages, range(one.cached_len, end)):
            page = slot // PAGE_LEN
            assert self.memory.pool.holders(page) == 1, "somebody else reads this page"
            self.written[page][slot % PAGE_LEN] = one.text[one.cached_len]
            one.cached_len += 1
        self.memory.keep(one.mine, one.text, one.cached_len)

    @precondition(lambda self: self.sessions)
    @rule(which=st.integers(0, 99))
    def lose_the_pages(self, which):
        one = self.sessions[which % len(self.sessions)]
        self.memory.free(one.mine)
        one.cached_len = self.memory.begin(one.mine, one.text)

    @precondition(lambda self: self.sessions)
    @rule(which=st.integers(0, 99))
    def end(self, which):
        self.memory.free(self.sessions.pop(which % len(self.sessions)).mine)

    @invariant()
    def every_session_finds_its_text(self):
        for one in getattr(self, "sessions", ()):
            slots = slots_of(one.mine.pages, range(one.cached_len))
            found = [self.written[slot // PAGE_LEN][slot % PAGE_LEN] for slot in slots]
            assert found == one.text[: one.cached_len]

    @invariant()
    def pages_are_free_held_or_cached(self):
        if hasattr(self, "memory"):
            held = {page for one in self.sessions for page in one.mine.pages}
            memory = self.memory
            assert memory.num_held == len(held)
            assert memory.pool.num_free == NUM_PAGES - len(held) - memory.prefixes.num_unused


TestAnyOrderOfEvents = MemoryMachine.TestCase


def session_with(memory: KvMemory, text: list[int]) -> SessionPages:
    mine = SessionPages()
    known = memory.begin(mine, text)
    assert memory.reserve(mine, len(text))
    memory.keep(mine, text, len(text))
    assert known <= len(text)
    return mine


def test_a_text_that_begins_like_another_has_its_pages():
    memory = KvMemory(NUM_PAGES)
    first = session_with(memory, CHUNKS[0] + CHUNKS[1] + [1, 2, 3])
    second = session_with(memory, CHUNKS[0] + CHUNKS[1] + [4, 5])
    assert first.pages[:2] == second.pages[:2]
    assert first.pages[2] != second.pages[2]
    assert memory.num_held == 4


def test_a_text_computed_twice_at_once_is_kept_once():
    memory, (one, other) = KvMemory(NUM_PAGES), (SessionPages(), SessionPages())
    for mine in (one, other):
        assert memory.begin(mine, CHUNKS[0] + [1]) == 0
        assert memory.reserve(mine, PAGE_LEN)
    assert one.pages != other.pages
    for mine in (one, other):
        memory.keep(mine, CHUNKS[0] + [1], PAGE_LEN)
    assert one.pages == other.pages
    assert memory.pool.num_free == NUM_PAGES - 1


def test_the_last_token_is_always_left_to_compute():
    memory = KvMemory(NUM_PAGES)
    memory.free(session_with(memory, CHUNKS[0] + [1]))
    assert memory.begin(SessionPages(), CHUNKS[0]) == 0
    assert memory.begin(SessionPages(), CHUNKS[0] + [7]) == PAGE_LEN


@pytest.mark.parametrize("used_again", [0, 1])
def test_the_longest_unused_beginning_is_given_up_first(used_again):
    memory = KvMemory(2)
    for chunk in CHUNKS:
        memory.free(session_with(memory, chunk))
    mine = SessionPages()
    memory.begin(mine, CHUNKS[used_again] + [1])
    memory.free(mine)
    assert memory.reserve(SessionPages(), 1)
    assert memory.num_known(CHUNKS[used_again] + [1]) == PAGE_LEN
    assert memory.num_known(CHUNKS[1 - used_again] + [1]) == 0


def test_a_page_that_leads_to_another_outlives_it():
    memory = KvMemory(3)
    memory.free(session_with(memory, CHUNKS[0] + CHUNKS[1]))
    first, second = SessionPages(), SessionPages()
    assert memory.reserve(first, 2 * PAGE_LEN)
    assert memory.num_known(CHUNKS[0] + CHUNKS[1] + [1]) == PAGE_LEN
    assert memory.reserve(second, 1)
    assert memory.num_known(CHUNKS[0] + CHUNKS[1] + [1]) == 0
