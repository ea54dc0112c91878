"""Rounds under every order of verdicts, drafts, losses and time; the target is a plain rule."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.experience import Experience
from gateway.policy import FixedPolicy
from gateway.round import Rounds
from protos.messages import DraftTimings, DraftTree, Plan, Verdict, VerifyTimings
from tests.gateway.rule_target import RuleTarget

# A small vocabulary, so that wrong drafts are right now and then.
VOCAB_SIZE = 5
TARGET = RuleTarget(VOCAB_SIZE)
DEADLINE_S = 1.0
PROMPT = [1, 2, 3]
PLAN = Plan(steps=4, top_k=2, draft_tokens=6)


@st.composite
def guesses(draw):
    """The nodes of a tree below its root: tokens and parents."""
    size = draw(st.integers(0, 8))
    tokens = draw(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=size, max_size=size))
    parents = [draw(st.integers(0, node)) for node in range(size)]
    return tokens, parents


class RoundsMachine(RuleBasedStateMachine):
    """What may happen to one session, in any order."""

    def __init__(self):
        super().__init__()
        self.rounds = Rounds(
            PROMPT,
            FixedPolicy(PLAN, Experience()),
            vocab_size=VOCAB_SIZE,
            max_new_tokens=1 << 30,
            deadline_s=DEADLINE_S,
        )
        self.now = 0.0
        self.in_flight = DraftTree.plain(len(PROMPT), PROMPT[-1])
        self.truth = list(PROMPT)
        self.open = False
        # The draft that must be verified next.
        self.ready = None
        self.verified, self.plain, self.accepted = [], 0, 0

    @rule(seconds=st.sampled_from([0.0, DEADLINE_S / 3, DEADLINE_S, 10.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @rule(opens=st.booleans())
    def a_drafter_opens_or_is_lost(self, opens):
        self.open = opens
        if opens:
            self.rounds.on_drafter_open("", "drafter")
        else:
            assert self.rounds.on_drafter_lost("", "gone") > 0
            assert self.rounds.statistics.trouble == "gone"
            self.ready = None

    @rule(
        kind=st.sampled_from(["any", "right", "stale", "future", "other root", "no token"]),
        guess=guesses(),
        number=st.integers(1, VOCAB_SIZE - 1),
    )
    def a_draft_comes(self, kind, guess, number):
        """A stale one changes nothing, not even whether a good one that came before is used."""
        tree = self.draft(kind, guess, number)
        self.rounds.on_tree("", tree)
        if kind != "stale":
            self.ready = tree if kind in ("any", "right") else None

    def draft(self, kind, guess, number):
        state, (tokens, parents) = self.drafter_state(), guess
        length, root = len(state), state[-1]
        match kind:
            case "right":
                chain = tuple(TARGET.continued(state, number)[length - 1 :])
                return DraftTree.chain(length, chain, timings=DraftTimings(5, 6, 7))
            case "stale":
                length = self.rounds.committed_len + (self.in_flight is not None) - 1
            case "future":
                length += number
            case "other root":
                root = (root + number) % VOCAB_SIZE
            case "no token":
                tokens, parents = [*tokens, VOCAB_SIZE - 1 + number], [*parents, 0]
        return DraftTree(length, (root, *tokens), (-1, *parents))

    def drafter_state(self):
        """The tokens that a drafter may know: a draft may overtake the verdict it follows."""
        if self.in_flight is None:
            return self.truth
        return self.truth + list(TARGET.verdict(self.truth, self.in_flight).tokens)

    @rule(remaining=st.sampled_from([1, 2, 3, 100]))
    def the_round_goes_on(self, remaining):
        if self.in_flight is None:
            self.poll(remaining)
        else:
            self.commit()

    def poll(self, remaining):
        ready, self.ready = self.ready, None
        tree = self.rounds.poll(self.now, remaining)
        if tree is None:
            assert ready is None, "a draft that is there is not waited for"
            assert self.open, "nobody to wait for"
            assert remaining > 1, "nothing to wait for"
            assert self.now < self.rounds.deadline
            return
        expected = ready or DraftTree.plain(len(self.truth), self.truth[-1])
        assert tree == expected.trimmed(min(PLAN.draft_tokens, remaining))
        assert max(tree.tokens) < VOCAB_SIZE
        self.in_flight = tree
        self.plain += ready is None and remaining > 1

    def commit(self):
        first = self.truth == PROMPT
        verdict = TARGET.verdict(self.truth, self.in_flight)
        tree = self.rounds.on_verdict(verdict, self.now)

        assert tree == self.in_flight
        assert self.rounds.deadline == self.now + DEADLINE_S
        self.truth += verdict.tokens
        self.in_flight = None
        if not first:
            self.rounds.statistics.count(tree, len(verdict.path), verdict.timings, PLAN)
            self.verified.append(tree)
            self.accepted += len(verdict.path)

    @invariant()
    def no_other_verdict_is_taken(self):
        """Neither one about another state, nor one that nobody waits for."""
        length = len(self.truth)
        wrong = [length - 1, length + 1, *([length] if self.in_flight is None else [])]
        for committed_len in wrong:
            verdict = Verdict(committed_len, (), (0,), (0.0,))
            with pytest.raises(ValueError, match=f"{committed_len} came at {length}"):
                self.rounds.on_verdict(verdict, self.now)

    @invariant()
    def one_tree_is_in_flight_at_most(self):
        if self.in_flight is not None:
            with pytest.raises(AssertionError, match="one tree at a time"):
                self.rounds.poll(self.now, 100)

    @invariant()
    def the_text_is_the_targets(self):
        assert self.rounds.tokens == self.truth
        assert self.rounds.tokens == TARGET.continued(PROMPT, len(self.truth) - len(PROMPT))
        assert self.rounds.committed_len == len(self.truth)

    @invariant()
    def the_statistics_add_up(self):
        stats = self.rounds.statistics
        assert stats.rounds == len(self.verified)
        assert stats.drafted == sum(tree.num_drafts for tree in self.verified)
        assert stats.accepted == self.accepted <= stats.drafted
        assert stats.missed == self.plain
        assert stats.accept_length == 1 + stats.accepted / max(1, stats.rounds)
        assert stats.verify == VerifyTimings(*(stats.rounds * n for n in (1, 2, 3, 4)))
        assert stats.draft.grow_us == sum(tree.timings.grow_us for tree in self.verified)

    @invariant()
    def deeper_drafts_are_accepted_ever_more_rarely(self):
        by_position = self.rounds.statistics.accepted_by_position
        assert sum(by_position) == self.accepted
        assert by_position == sorted(by_position, reverse=True)


TestRounds = RoundsMachine.TestCase
TestRounds.settings = settings(max_examples=100, stateful_step_count=40)
