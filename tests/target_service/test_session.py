"""A session's accounting: what is final, what is cached, and which trees are taken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kernels import tree
from protos.messages import DraftTree, SamplingParams
from target_service.session import Rows, Session

VOCAB = 50
MAX_NEW = 5
STOP = 7


def session_of(prompt: list[int], max_new_tokens: int = MAX_NEW, **sampling: object) -> Session:
    stops = frozenset({STOP})
    return Session("a", prompt, SamplingParams(**sampling), max_new_tokens, VOCAB, stops)


def tokens(**size: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, VOCAB - 1), **size)


@st.composite
def nodes(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Tokens and parents of nodes below a root."""
    drafts = draw(tokens(max_size=8))
    return drafts, [draw(st.integers(0, node)) for node in range(len(drafts))]


class SessionMachine(RuleBasedStateMachine):
    """Any order of events. `slots` is what a KV cache would hold, told only which rows ran."""

    @initialize(prompt=tokens(min_size=1, max_size=12), chunk_len=st.integers(1, 5))
    def open(self, prompt, chunk_len):
        self.session = session_of(list(prompt))
        self.prompt, self.chunk_len = prompt, chunk_len
        self.committed = list(prompt)
        self.slots: list[int] = []
        self.pending: tuple[list[int], list[int]] | None = ([], [])
        # Whether what is pending is a plain step that nobody sent.
        self.own = False

    def tree(self, below, committed_len=None, root=None) -> DraftTree:
        return DraftTree(
            len(self.committed) if committed_len is None else committed_len,
            (self.committed[-1] if root is None else root, *below[0]),
            (-1, *below[1]),
        )

    @precondition(lambda self: self.pending is not None)
    @rule(accepted=st.integers(0, 8), bonus=st.integers(0, VOCAB - 1))
    def step(self, accepted, bonus):
        rows = self.session.next_rows(self.chunk_len)
        self.check_rows(rows)
        del self.slots[rows.prefix_len :]
        self.slots += rows.tokens
        if rows.root is None:
            self.session.advance(len(rows.tokens))
            return
        path = list(max(tree.paths(rows.tree[1]), key=len))[1 : 1 + accepted]
        first = rows.prefix_len + rows.root + 1
        self.slots[first:] = [self.slots[first - 1 + node] for node in path]
        verdict = [*(rows.tree[0][node] for node in path), bonus]
        goes_on = self.session.commit(verdict)
        self.committed += verdict
        self.pending, self.own = ([], []) if goes_on else None, goes_on
        assert goes_on == self.runs

    @rule()
    def lose_the_pages(self):
        """All committed tokens are without rows again."""
        self.session.cached_len = 0
        self.slots = []

    @rule(ahead=st.integers(-3, 6))
    def run(self, ahead):
        begins = self.session.run(len(self.committed) + ahead)
        assert begins == (self.pending is None and self.runs)
        if begins:
            self.pending, self.own = ([], []), True

    def check_rows(self, rows: Rows) -> None:
        """The chain is at most a chunk of committed tokens, and the tree is the one offered."""
        chain = len(rows.tokens) if rows.root is None else rows.root
        assert chain <= self.chunk_len
        assert rows.prefix_len == len(self.slots)
        assert list(rows.tokens[:chain]) == self.committed[rows.prefix_len :][:chain]
        assert list(rows.parents[:chain]) == list(range(-1, chain - 1))
        if rows.root is None:
            assert rows.prefix_len + chain < len(self.committed)
        else:
            assert rows.prefix_len + rows.root == len(self.committed) - 1
            assert rows.parents[rows.root] == rows.root - 1
            below = self.pending
            assert rows.tree == ((self.committed[-1], *below[0]), (-1, *below[1]))

    @precondition(lambda self: self.may_offer)
    @rule(below=nodes())
    def offer(self, below):
        assert self.session.offer(self.tree(below))
        self.pending, self.own = below, False

    @rule(below=nodes(), late=st.integers(1, 5), root=st.integers(0, 2 * VOCAB))
    def offer_stale(self, below, late, root):
        """Dropped, whatever else is wrong with it."""
        if late < len(self.committed):
            assert not self.session.offer(self.tree(below, len(self.committed) - late, root))

    @precondition(lambda self: not self.drops)
    @rule(below=nodes(), early=st.integers(1, 5))
    def offer_future(self, below, early):
        self.refused(self.tree(below, len(self.committed) + early), str(len(self.committed)))

    @precondition(lambda self: self.drops)
    @rule(below=nodes(), early=st.integers(0, 5), root=st.integers(0, 2 * VOCAB))
    def offer_while_it_runs(self, below, early, root):
        """Dropped, whatever is wrong with it: the target goes on by itself, or did until now."""
        assert not self.session.offer(self.tree(below, len(self.committed) + early, root))

    @precondition(lambda self: self.pending is not None and not self.drops)
    @rule(below=nodes())
    def offer_second(self, below):
        self.refused(self.tree(below), "being verified")

    @precondition(lambda self: self.may_offer)
    @rule(below=nodes(), off=st.integers(1, VOCAB - 1))
    def offer_wrong_root(self, below, off):
        root = (self.committed[-1] + off) % VOCAB
        self.refused(self.tree(below, root=root), f"got {root}")

    @precondition(lambda self: self.may_offer)
    @rule(below=nodes(), strange=st.integers(VOCAB, 2**32))
    def offer_out_of_vocabulary(self, below, strange):
        below = ([*below[0], strange], [*below[1], 0])
        self.refused(self.tree(below), f"got {strange}")

    @precondition(lambda self: self.pending is None and not self.may_offer)
    @rule(below=nodes())
    def offer_after_the_last(self, below):
        self.refused(self.tree(below), f"all {MAX_NEW} tokens")

    def refused(self, wrong: DraftTree, named: str) -> None:
        before = vars(self.session).copy()
        with pytest.raises(ValueError, match=named):
            self.session.offer(wrong)
        assert vars(self.session) == before

    @property
    def runs(self) -> bool:
        """Whether the session is to go on by itself: not after a stop token of the answer."""
        answer = self.committed[len(self.prompt) :]
        wanted = len(self.committed) < self.session.run_until
        return wanted and len(answer) < MAX_NEW and answer[-1:] != [STOP]

    @property
    def drops(self) -> bool:
        """Whether trees are dropped now: the verdict under way answers them."""
        return self.pending is not None and (self.runs or self.own)

    @property
    def may_offer(self) -> bool:
        return self.pending is None and len(self.committed) - len(self.prompt) < MAX_NEW

    @invariant()
    def the_cache_holds_what_is_committed(self):
        session = self.session
        assert session.tokens == self.committed
        assert session.committed_len == len(self.committed)
        assert session.num_new_tokens == len(self.committed) - len(self.prompt)
        assert self.slots == self.committed[: session.cached_len]
        assert session.cached_len < session.committed_len
        assert (session.tree is None) == (self.pending is None)


TestAnyOrderOfEvents = SessionMachine.TestCase


@given(prompt=tokens(min_size=1, max_size=30), chunk_len=st.integers(1, 40))
def test_a_prompt_takes_as_few_steps_as_chunks(prompt, chunk_len):
    """Its last token needs no step of its own."""
    session, steps = session_of(prompt), 1
    while (rows := session.next_rows(chunk_len)).root is None:
        session.advance(len(rows.tokens))
        steps += 1
    assert steps == max(1, -(-(len(prompt) - 1) // chunk_len))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompt": []}, "at least one token, got none"),
        ({"prompt": [3, VOCAB]}, r"prompt_token_ids must be in \[0, 50\), got 50"),
        ({"prompt": [1], "logit_bias": {60: 1.0}}, r"logit_bias must be in \[0, 50\), got 60"),
        (
            {"prompt": [1], "suppressed_token_ids": (1, 99)},
            r"suppressed_token_ids must be in \[0, 50\), got 99",
        ),
    ],
)
def test_a_token_outside_the_vocabulary_is_refused_at_once(settings, message):
    with pytest.raises(ValueError, match=message):
        session_of(**settings)


def test_sessions_of_the_same_id_are_different_keys():
    assert len({session_of([1]): 0, session_of([1]): 1}) == 2
