"""Rounds steered by the automatic policy, in every order of verdicts, drafts, losses and time."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gateway.auto_policy import AutoPolicy
from gateway.experience import Experience
from gateway.plans import NO_LIMIT
from gateway.round import Rounds
from protos.messages import DraftTimings, DraftTree
from tests.gateway.rule_target import RuleTarget

VOCAB_SIZE = 5
TARGET = RuleTarget(VOCAB_SIZE)
PROMPT = [1, 2, 3]


class SteeredMachine(RuleBasedStateMachine):
    """A session that speculates, stops and begins again, whatever its drafter does."""

    @initialize(max_new_tokens=st.integers(1, 400))
    def begin(self, max_new_tokens):
        self.rounds = Rounds(
            PROMPT,
            AutoPolicy(Experience(), NO_LIMIT, ""),
            vocab_size=VOCAB_SIZE,
            max_new_tokens=max_new_tokens,
            deadline_s=1.0,
        )
        self.longest = len(PROMPT) + max_new_tokens
        self.now = 1.0
        # As the target has it: its text, until where it runs, and the tree that it verifies.
        self.text = list(PROMPT)
        self.run_until = self.rounds.run_until
        self.verifying = DraftTree.plain(len(PROMPT), PROMPT[-1])

    @property
    def remaining(self):
        return self.longest - len(self.text)

    @rule(seconds=st.sampled_from([0.001, 0.01, 1.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @rule(opens=st.booleans())
    def a_drafter_opens_or_is_lost(self, opens):
        if opens and "" in self.rounds.drafters:
            self.rounds.on_drafter_open("", "drafter")
        else:
            self.rounds.on_drafter_lost("", "gone")

    @rule(right=st.booleans(), steps=st.integers(0, 6), late=st.integers(0, 1))
    def a_draft_comes(self, right, steps, late):
        length = len(self.text) - late
        chain = TARGET.continued(self.text[:length], steps)[length - 1 :]
        if not right:
            chain = [chain[0], *((token + 1) % VOCAB_SIZE for token in chain[1:])]
        timings = DraftTimings(0, 500, 500 * steps)
        self.rounds.on_tree("", DraftTree.chain(length, tuple(chain), timings=timings))

    @rule()
    def the_target_answers(self):
        if self.verifying is None or self.remaining <= 0:
            return
        self.now += 0.01
        verdict = TARGET.verdict(self.text, self.verifying)
        self.rounds.on_verdict(verdict, self.now)
        self.text += verdict.tokens
        runs = len(self.text) < self.run_until
        self.verifying = DraftTree.plain(len(self.text), self.text[-1]) if runs else None
        until = self.rounds.decide() if self.remaining > 0 else None
        if until is not None:
            assert len(self.text) < until <= self.longest
            assert until > self.run_until
            self.run_until = until
            self.verifying = DraftTree.plain(len(self.text), self.text[-1])

    @rule()
    def the_gateway_goes_on(self):
        """It asks for nothing while the target runs by itself."""
        if self.verifying is not None or self.remaining <= 0:
            return
        assert not self.rounds.runs_on
        self.verifying = self.rounds.poll(self.now, self.remaining)
        if self.verifying is None:
            self.now = max(self.now, self.rounds.deadline)
            self.verifying = self.rounds.poll(self.now, self.remaining)
        assert self.verifying is not None
        assert len(self.verifying.tokens) <= max(self.remaining, 1)

    @invariant()
    def gateway_and_target_agree(self):
        if not hasattr(self, "rounds"):
            return
        assert self.rounds.tokens == self.text
        assert self.text == TARGET.continued(PROMPT, len(self.text) - len(PROMPT))
        assert self.rounds.run_until == self.run_until
        assert self.rounds.runs_on == (len(self.text) < self.run_until)


TestSteered = SteeredMachine.TestCase
TestSteered.settings = settings(max_examples=100, stateful_step_count=60)
