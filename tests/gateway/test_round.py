"""How long a round waits for a draft, and what it makes of one that cannot be honest."""

import pytest

from gateway.experience import Experience
from gateway.policy import FixedPolicy
from gateway.round import Rounds
from protos.messages import DraftTree, Plan, Verdict
from tests.gateway.rule_target import RuleTarget

VOCAB_SIZE = 5
TARGET = RuleTarget(VOCAB_SIZE)
DEADLINE_S = 1.0
PROMPT = [1, 2, 3]
PLAN = Plan(steps=4, top_k=2, draft_tokens=6)


class Session:
    """Rounds that are played by hand: each is one verdict and then one decision."""

    def __init__(self, plan=PLAN):
        self.rounds = Rounds(
            PROMPT,
            FixedPolicy(plan, Experience()),
            vocab_size=VOCAB_SIZE,
            max_new_tokens=1 << 30,
            deadline_s=DEADLINE_S,
        )
        self.tree = DraftTree.plain(len(PROMPT), PROMPT[-1])
        self.now = 0.0

    def commit(self):
        self.rounds.on_verdict(TARGET.verdict(self.rounds.tokens, self.tree), self.now)

    def waits(self):
        """Play a round without a draft; return whether it waited for one."""
        self.commit()
        tree = self.rounds.poll(self.now, 100)
        waited = tree is None
        if waited:
            self.now = self.rounds.deadline
            tree = self.rounds.poll(self.now, 100)
        self.tree = tree
        return waited

    def draft(self):
        """Play a round with a draft that is there before it is wanted."""
        self.commit()
        self.rounds.on_tree(
            "", DraftTree.chain(self.rounds.committed_len, (self.rounds.tokens[-1], 0))
        )
        self.tree = self.rounds.poll(self.now, 100)
        assert self.tree.num_drafts == 1


def rounds_between_waits(session, count):
    """How many rounds lie between one wait and the next, `count` times."""
    gaps = []
    assert session.waits()
    for _ in range(count):
        gap = 0
        while not session.waits():
            gap += 1
        gaps.append(gap)
    return gaps


def test_a_drafter_that_misses_is_waited_for_ever_more_rarely():
    session = Session()
    session.rounds.on_drafter_open("", "slow")

    assert rounds_between_waits(session, 9) == [1, 2, 4, 8, 16, 32, 64, 64, 64]
    assert session.rounds.statistics.trouble == "no draft within 1000 ms"


def test_a_drafter_that_kept_its_word_is_waited_for_at_once():
    """And if it misses again, all begins anew."""
    session = Session()
    session.rounds.on_drafter_open("", "drafter")
    rounds_between_waits(session, 4)

    session.draft()

    assert rounds_between_waits(session, 3) == [1, 2, 4]


def test_nobody_is_waited_for_before_a_drafter_opens_or_after_it_is_lost():
    session = Session()
    assert not session.waits()

    session.rounds.on_drafter_open("", "drafter")
    assert session.waits()

    session.rounds.on_drafter_lost("", "gone")
    assert [session.waits() for _ in range(5)] == [False] * 5


class CutShort(FixedPolicy):
    """Runs for long, and thinks better of it."""

    def more_plain(self, plain_left, *, drafter_open, remaining):
        return 4 - plain_left if plain_left else 100


def test_a_plain_stretch_can_be_cut_short():
    """A verdict that was under way when the target heard of it answers the tree sent meanwhile."""
    session = Session()
    session.rounds._policy = CutShort(PLAN, Experience())
    session.commit()
    long = session.rounds.decide()
    session.tree = DraftTree.plain(session.rounds.committed_len, session.rounds.tokens[-1])
    session.commit()
    short = session.rounds.decide()
    assert session.rounds.committed_len + 4 == short < long
    while session.rounds.runs_on:
        session.tree = DraftTree.plain(session.rounds.committed_len, session.rounds.tokens[-1])
        session.commit()
    assert session.rounds.committed_len == short
    late = DraftTree.plain(short, session.rounds.tokens[-1])
    session.rounds.on_drafter_open("", "drafter")
    session.rounds.on_tree("", DraftTree.chain(short, (session.rounds.tokens[-1], 0)))
    assert session.rounds.poll(session.now, 100).num_drafts == 1

    session.rounds.on_verdict(TARGET.verdict(session.rounds.tokens, late), session.now)

    assert session.rounds.committed_len == short + 1
    assert session.rounds.tokens == TARGET.continued(PROMPT, short + 1 - len(PROMPT))


@pytest.mark.parametrize("plan", [Plan(steps=0), Plan(steps=3, draft_tokens=1)])
def test_without_a_plan_for_drafts_nothing_is_sent_and_none_is_missed(plan):
    """The target goes on by itself, whatever a drafter sends that nobody asked."""
    session = Session(plan)
    session.rounds.on_drafter_open("", "unasked")
    for _ in range(3):
        session.commit()
        session.tree = DraftTree.plain(session.rounds.committed_len, session.rounds.tokens[-1])
        session.rounds.on_tree("", DraftTree.chain(4, (session.rounds.tokens[-1], 0)))

        assert session.rounds.decide() is None
        assert session.rounds.runs_on
    assert session.rounds.statistics.missed == 0


def test_pauses_before_another_try_double_until_a_draft_is_used():
    """To open is not enough: a drafter may open and be lost again for ever."""
    session = Session()
    pauses = []
    for _ in range(9):
        session.rounds.on_drafter_open("", "drafter")
        pauses.append(session.rounds.on_drafter_lost("", "gone"))

    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]

    session.rounds.on_drafter_open("", "drafter")
    session.draft()
    assert session.rounds.on_drafter_lost("", "gone") == 0.05


def test_a_draft_that_comes_too_late_does_not_replace_the_next_one():
    """The next one may be there before the verdict that it follows."""
    session = Session()
    late = DraftTree.chain(3, (3, 4))
    early = DraftTree.chain(4, (4, 0))
    session.rounds.on_tree("", early)
    session.rounds.on_tree("", late)
    session.commit()

    assert session.rounds.poll(0.0, 100) == early


@pytest.mark.parametrize("tokens", [(3, 0), (4, 5)])
def test_a_draft_that_cannot_be_honest_is_named_in_the_trouble(tokens):
    """The root is token 4, and there are 5 tokens."""
    session = Session()
    session.commit()
    session.rounds.on_tree("", DraftTree.chain(4, tokens))

    session.rounds.poll(0.0, 100)

    assert session.rounds.statistics.trouble == (
        f"a draft from token {tokens[0]} with ids up to {max(tokens)} came, "
        "expected one from token 4 with ids below 5"
    )


def test_a_verdict_that_accepts_more_than_was_drafted_is_refused():
    session = Session()
    verdict = Verdict(len(PROMPT), (1,), (0, 0), (0.0, 0.0))

    with pytest.raises(ValueError, match="accepts 1 nodes of a tree with 0"):
        session.rounds.on_verdict(verdict, 0.0)
