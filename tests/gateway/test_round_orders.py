"""Rounds under every order of verdicts, drafts, losses and time; the target is a plain rule."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.policy import Policy
from gateway.round import Rounds
from protos.messages import DraftTimings, DraftTree, Plan, VerifyTimings
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
        self.rounds = Rounds(PROMPT, Policy(PLAN), vocab_size=VOCAB_SIZE, deadline_s=DEADLINE_S)
        self.now = 0.0
        self.in_flight = DraftTree.plain(len(PROMPT), PROMPT[-1])
        self.truth = list(PROMPT)
        self.open = False
        self.ready = None
        self.verified, self.plain, self.accepted = [], 0, 0

    def drafter_state(self):
        """The tokens that a drafter may know: a draft may overtake the verdict it follows."""
        if self.in_flight is None:
            return self.truth
        return self.truth + list(TARGET.verdict(self.truth, self.in_flight).tokens)

    def arrive(self, tree, *, usable):
        self.rounds.on_tree(tree)
        self.ready = tree if usable else None

    @rule(seconds=st.sampled_from([0.0, DEADLINE_S / 3, DEADLINE_S, 10.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @rule()
    def drafter_opens(self):
        self.rounds.on_drafter_open("drafter")
        self.open = True

    @rule()
    def drafter_is_lost(self):
        assert self.rounds.on_drafter_lost("gone") > 0
        assert self.rounds.statistics.trouble == "gone"
        self.open, self.ready = False, None

    @rule(guess=guesses())
    def any_draft_for_this_state_comes(self, guess):
        state, (tokens, parents) = self.drafter_state(), guess
        tree = DraftTree(len(state), (state[-1], *tokens), (-1, *parents))
        self.arrive(tree, usable=True)

    @rule(depth=st.integers(0, 8))
    def a_right_draft_comes(self, depth):
        state = self.drafter_state()
        tokens = tuple(TARGET.continued(state, depth)[len(state) - 1 :])
        timings = DraftTimings(5, 6, 7)
        self.arrive(DraftTree.chain(len(state), tokens, timings=timings), usable=True)

    @rule(lag=st.integers(1, 3), guess=guesses())
    def a_stale_draft_comes(self, lag, guess):
        """It does not even replace a good one."""
        current, (tokens, parents) = len(self.truth) + (self.in_flight is not None), guess
        root = self.truth[-1]
        self.rounds.on_tree(DraftTree(current - lag, (root, *tokens), (-1, *parents)))

    @rule(lead=st.integers(1, 2**40), guess=guesses())
    def a_draft_from_the_future_comes(self, lead, guess):
        state, (tokens, parents) = self.drafter_state(), guess
        tree = DraftTree(len(state) + lead, (state[-1], *tokens), (-1, *parents))
        self.arrive(tree, usable=False)

    @rule(shift=st.integers(1, VOCAB_SIZE - 1))
    def a_draft_from_another_root_comes(self, shift):
        state = self.drafter_state()
        tree = DraftTree.chain(len(state), ((state[-1] + shift) % VOCAB_SIZE, 0))
        self.arrive(tree, usable=False)

    @rule(beyond=st.integers(VOCAB_SIZE, 2**32 - 1))
    def a_draft_of_tokens_that_do_not_exist_comes(self, beyond):
        state = self.drafter_state()
        self.arrive(DraftTree.chain(len(state), (state[-1], 0, beyond)), usable=False)

    @precondition(lambda self: self.in_flight is None)
    @rule(remaining=st.sampled_from([1, 2, 3, 100]))
    def poll(self, remaining):
        ready, self.ready = self.ready, None
        tree = self.rounds.poll(self.now, remaining)
        if tree is None:
            assert ready is None, "a draft that is there is not waited for"
            assert self.open, "nobody to wait for"
            assert remaining > 1, "nothing to wait for"
            assert self.now < self.rounds.deadline
            return
        self.check_tree(tree, ready, remaining)
        self.in_flight = tree
        self.plain += ready is None and remaining > 1

    def check_tree(self, tree, ready, remaining):
        assert tree.committed_len == len(self.truth)
        assert tree.tokens[0] == self.truth[-1]
        assert max(tree.tokens) < VOCAB_SIZE
        assert 1 <= len(tree.tokens) <= min(PLAN.draft_tokens, remaining)
        drafted = ready or DraftTree.plain(len(self.truth), self.truth[-1])
        assert tree == drafted.trimmed(min(PLAN.draft_tokens, remaining))

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def verdict_comes(self):
        first = self.truth == PROMPT
        verdict = TARGET.verdict(self.truth, self.in_flight)
        tree = self.rounds.on_verdict(verdict, self.now)

        assert tree == self.in_flight
        assert self.rounds.deadline == self.now + DEADLINE_S
        self.truth += verdict.tokens
        self.in_flight = None
        if not first:
            self.rounds.statistics.count(tree, len(verdict.path), verdict.timings)
            self.verified.append(tree)
            self.accepted += len(verdict.path)

    @rule(shift=st.sampled_from([-1, 1, 100]))
    def a_verdict_about_another_state_is_refused(self, shift):
        verdict = replace(
            TARGET.verdict(self.truth, DraftTree.plain(1, 0)), committed_len=len(self.truth) + shift
        )
        with pytest.raises(ValueError, match=f"{verdict.committed_len} came at {len(self.truth)}"):
            self.rounds.on_verdict(verdict, self.now)

    @precondition(lambda self: self.in_flight is None)
    @rule()
    def a_verdict_that_nobody_asked_for_is_refused(self):
        verdict = TARGET.verdict(self.truth, DraftTree.plain(len(self.truth), self.truth[-1]))
        with pytest.raises(ValueError, match="came at"):
            self.rounds.on_verdict(verdict, self.now)

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def one_tree_is_in_flight_at_most(self):
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
