"""A simulated session does what its policy says: any policy of the gateway's interface."""

from dataclasses import replace

import pytest

from benchmarks.simulation.acceptance import Acceptance
from benchmarks.simulation.hardware import Drafting
from benchmarks.simulation.presets import PRESETS
from benchmarks.simulation.session import PROMPT_LEN
from benchmarks.simulation.stack import Load, Stack
from gateway.plans import NO_DRAFTS
from protos.messages import Plan

KIMI = PRESETS["kimi-k2.5-8xh200"]
CHAIN = Plan(3, 1, 4)


class Alternating:
    """So many plain tokens, then so many rounds; the drafter stays or goes meanwhile."""

    lead, scouts = "", {}

    def __init__(self, plain, rounds, *, stays):
        self.plain_tokens, self.rounds, self.stays = plain, rounds, stays
        self.rounds_left, self.seen = 0, []

    @property
    def wants_drafter(self):
        return self.stays or self.rounds_left > 0

    def plan(self, plain_left):
        return NO_DRAFTS if plain_left > 1 else CHAIN

    def patience_s(self, longest_s):
        return longest_s

    def more_plain(self, plain_left, *, drafter_open, remaining):
        if plain_left:
            return 0
        if self.rounds_left:
            self.rounds_left -= 1
            return 0
        self.rounds_left = self.rounds
        return self.plain_tokens

    def trim(self, tree, remaining):
        return tree

    def drafter_opened(self, name, drafter_id):
        assert name == self.lead
        self.drafter_id = drafter_id

    def learn(self, one, tokens, *, plain):
        self.seen.append((plain, one))

    def end(self):
        pass


def run(policy, seconds=3.0, hardware=KIMI):
    stack = Stack(hardware, Load(Acceptance()), lambda: policy)
    stack.clock.run_until(seconds)
    return stack


def test_plain_stretches_and_rounds_take_turns():
    """Eight plain tokens, four rounds with drafts, and so on; no draft is missed."""
    policy = Alternating(8, 4, stays=True)
    statistics = run(policy).sessions[0].rounds.statistics
    drafted = [one for plain, one in policy.seen if not plain and one.drafted is not None]
    assert statistics.missed == 0
    assert len(drafted) / statistics.rounds == pytest.approx(4 / 12, abs=0.05)
    assert all(one.drafted.drafter_id == policy.drafter_id for one in drafted)


def test_plain_steps_of_a_stretch_are_free_of_hops():
    """What the policy learns of them is the time of a step."""
    policy = Alternating(8, 4, stays=True)
    run(policy)
    took_us = [one.took_us for plain, one in policy.seen if plain]
    mean_us = sum(took_us) / len(took_us)
    assert mean_us == pytest.approx(1e6 * KIMI.plain_s(1), rel=0.03)


def test_a_drafter_that_comes_back_takes_in_the_whole_text():
    """Sent away in plain stretches, it has more rows to compute, not fewer."""
    by_rows = replace(KIMI, drafter=Drafting(extend_ms=0.0, step_ms=0.0, row_ms=0.1))
    staying, leaving = (
        run(Alternating(64, 8, stays=stays), 10.0, by_rows).busy_s()[1] for stays in (True, False)
    )
    assert leaving > 2 * staying


def test_timings_are_filled_as_the_services_fill_them():
    policy = Alternating(1, 8, stays=True)
    run(policy)
    for plain, one in policy.seen:
        assert one.verify.rows == len(one.verified.tokens)
        assert one.verify.forward_us > 9000
        if not plain and one.drafted is not None:
            timings = one.drafted.timings
            assert timings.grow_us == pytest.approx(2 * 1000 * KIMI.drafter.step_ms, rel=0.05)
            assert len(one.drafted.logprobs) == len(one.drafted.tokens)


def test_the_text_grows_by_what_is_committed():
    rounds = run(Alternating(3, 3, stays=True)).sessions[0].rounds
    committed = rounds.committed_len - PROMPT_LEN
    statistics = rounds.statistics
    assert committed == 1 + statistics.rounds + statistics.accepted
