"""Who begins calls the others; what lost most of them is over for all, and not soon tried again."""

import pytest

from gateway.auto_policy import FOR_GOOD
from gateway.calls import Call, Calls, Membership
from gateway.experience import Experience
from gateway.plans import CHAINS, NO_DRAFTS, NO_LIMIT
from gateway.policy import Wish, policy_for
from gateway.spell import TRIAL_LOSS
from protos.messages import VerifyTimings

PLAN = CHAINS[1]


def members(calls, count, is_trial=True):
    """One calls, the others join."""
    sessions = [Membership(calls) for _ in range(count)]
    for session in sessions:
        session.begin(Call("d", PLAN, is_trial))
    return sessions


class TestCalls:
    def test_a_call_is_heard_once(self):
        calls = Calls()
        other = Membership(calls)
        assert other.news() is None
        members(calls, 1)
        assert other.news() is calls.open
        other.answer()
        assert other.news() is None

    def test_who_begins_while_it_is_open_joins_it(self):
        calls = Calls()
        members(calls, 3)
        assert calls.open.members == 3

    def test_with_another_drafter_a_session_is_alone(self):
        calls = Calls()
        members(calls, 2)
        stranger = Membership(calls)
        stranger.begin(Call("other", PLAN, False))
        assert not stranger.is_on
        stranger.leave(lost=True)
        assert (calls.open.members, calls.open.lost) == (2, 0)

    def test_it_is_over_when_most_have_lost(self):
        calls = Calls()
        sessions = members(calls, 5)
        for number, session in enumerate(sessions[:3]):
            assert not session.is_over
            session.leave(lost=True)
            assert (calls.open is None) == (number == 2)
        assert all(session.is_over for session in sessions[3:])
        assert calls.failures == 1

    def test_sessions_that_end_are_no_loss(self):
        calls = Calls()
        for session in members(calls, 3):
            session.leave(lost=False)
        assert calls.open is None
        assert calls.failures == 0
        assert calls.may_try

    def test_a_call_that_ended_with_a_gain_is_no_failure_any_more(self):
        calls = Calls()
        members(calls, 1)[0].leave(lost=True)
        session = members(calls, 1)[0]
        calls.gain(100.0, 100.0, 1)
        session.leave(lost=False)
        assert calls.failures == 0

    def test_after_every_failure_the_pause_is_longer(self):
        calls, pauses = Calls(), []
        for _ in range(5):
            members(calls, 1)[0].leave(lost=True)
            waited = 0
            while not calls.may_try:
                calls.pass_tokens(4, 2)
                waited += 2
            pauses.append(waited)
        assert pauses == [32, 64, 128, 256, 256]

    def test_it_is_over_when_all_together_have_lost_too_much(self):
        """1.5 plain steps each in a trial, whoever lost them: also who goes on plainly."""
        calls = Calls()
        members(calls, 2)
        for _ in range(5):
            assert calls.open is not None
            calls.gain(-13.0, plain_us=10.0, num_sessions=4)
        assert calls.open is None
        assert calls.failures == 1

    def test_gains_are_not_saved_up(self):
        """One that gained for long is over after 4 + 2 plain steps of loss."""
        calls = Calls()
        winner, _ = members(calls, 2)
        winner.succeed()
        for _ in range(100):
            calls.gain(5.0, plain_us=10.0, num_sessions=2)
        losses = 0
        while calls.open is not None:
            calls.gain(-10.0, plain_us=10.0, num_sessions=2)
            losses += 1
        assert losses == 13

    def test_a_gain_makes_up_for_failures(self):
        calls = Calls()
        members(calls, 1)[0].leave(lost=True)
        winner, other = members(calls, 2)
        winner.succeed()
        assert not calls.open.is_trial
        assert calls.failures == 0
        assert not other.is_over

    def test_all_take_an_interlude_when_one_wants_it_and_each_once(self):
        calls = Calls()
        first, second = members(calls, 2)
        first.begin_interlude()
        assert [first.takes_interlude(), second.takes_interlude()] == [True, True]
        assert [first.takes_interlude(), second.takes_interlude()] == [False, False]

    def test_an_interlude_before_a_session_began_is_not_its_own(self):
        calls = Calls()
        members(calls, 1)[0].begin_interlude()
        late = members(calls, 1)[0]
        assert not late.takes_interlude()


class TestSessions:
    """Policies of one gateway, asked by hand."""

    @pytest.fixture
    def experience(self):
        experience = Experience(default_drafter="d")
        experience.costs.add_plain(10_000.0, VerifyTimings(0, 9_000, 0, 1))
        return experience

    @pytest.fixture
    def policies(self, experience):
        wish = Wish("auto", NO_LIMIT)
        return [policy_for(wish, experience, "") for _ in range(4)]

    def test_who_decodes_plainly_stops_soon_and_joins(self, experience, policies):
        """Not at once: its drafter needs time, and what the target has begun is not taken back."""
        assert policies[0].more_plain(0, drafter_open=False, remaining=FOR_GOOD) == 0
        left = 100
        more = policies[1].more_plain(left, drafter_open=False, remaining=FOR_GOOD)
        assert 0 < left + more < 16
        assert policies[1].wants_drafter
        assert policies[1].plan(0) == policies[0].plan(0)
        assert policies[2].more_plain(3, drafter_open=False, remaining=FOR_GOOD) == 0
        assert policies[2].wants_drafter
        assert experience.speculating == 3

    def test_plain_steps_beside_rounds_are_no_measure_of_plain_decoding(self, experience, policies):
        policies[0].more_plain(0, drafter_open=False, remaining=FOR_GOOD)
        assert not experience.all_decode_plainly
        for policy in policies:
            policy.end()
        assert experience.all_decode_plainly
        assert (experience.num_sessions, experience.trying) == (0, 0)
        assert experience.calls.open is None

    def test_a_trial_that_nobody_joins_may_lose_little(self, experience, policies):
        """Beside an open call with another drafter: 1.5 plain steps, as if it were alone."""
        policies[0].more_plain(0, drafter_open=False, remaining=FOR_GOOD)
        named = policy_for(Wish("auto", NO_LIMIT), experience, "another")
        experience.trying = 0
        named.more_plain(0, drafter_open=False, remaining=FOR_GOOD)
        assert named.wants_drafter
        assert not named._membership.is_on
        assert named._spell.loss_allowed == TRIAL_LOSS

    def test_a_session_that_may_not_draft_hears_nothing(self, experience, policies):
        policies[0].more_plain(0, drafter_open=False, remaining=FOR_GOOD)
        off = policy_for(Wish("off", NO_DRAFTS), experience, "")
        named = policy_for(Wish("auto", NO_LIMIT), experience, "another")
        assert off.more_plain(0, drafter_open=False, remaining=FOR_GOOD) == FOR_GOOD
        assert named.more_plain(100, drafter_open=False, remaining=FOR_GOOD) == 0
        assert not named.wants_drafter
