"""What a session gets does not depend on who is beside it, bit for bit."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protos.messages import Plan, SamplingParams
from tests.draft_service.drafters.followed import Followed
from tests.draft_service.drafters.played_session import PlayedSession


@dataclass
class Guest:
    """A session, how it is sampled, and its plans, one a round."""

    session: PlayedSession
    first_row: int
    sampling: SamplingParams
    plans: list[Plan]

    def begin(self, drafter):
        self.one = Followed.by(drafter, self.first_row)
        self.next_row = self.first_row

    def rows(self, count):
        """Return the next rows for a batch."""
        first, end = self.next_row, min(self.next_row + count, len(self.session.tokens) - 1)
        self.next_row = end
        tokens = self.session.tokens[first + 1 : end + 1]
        return self.one.rows(first, tokens, self.session.taps()[first:end])

    @property
    def is_behind(self):
        return self.next_row < len(self.session.tokens) - 1

    def wanted(self, turn):
        return self.one.wanted(list(self.session.tokens), self.plans[turn], self.sampling)


ROUNDS = 2
SAMPLINGS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.8, 1.3]),
    top_k=st.sampled_from([0, 0, 7]),
    seed=st.integers(0, 2**64 - 1),
)
PLANS = st.builds(Plan, st.integers(0, 5), st.integers(1, 4), st.integers(1, 20))
GUESTS = st.lists(
    st.tuples(
        st.integers(2, 150),
        st.sampled_from([0, 0, 1]),
        SAMPLINGS,
        st.lists(PLANS, min_size=ROUNDS, max_size=ROUNDS),
    ),
    min_size=1,
    max_size=5,
)


def guests_of(drawn):
    return [
        Guest(PlayedSession(seed=place, prompt_len=length), min(first, length - 1), *rest)
        for place, (length, first, *rest) in enumerate(drawn)
    ]


def commit(guest, turn):
    """The same tokens, whatever was drafted."""
    guest.session.commit([turn, turn + 1])


def alone(drafter, drawn):
    """Return the drafts of every round, each session by itself, all of its rows at once."""
    drafts = []
    for guest in guests_of(drawn):
        guest.begin(drafter)
        for turn in range(ROUNDS):
            if guest.is_behind:
                drafter.extend([guest.rows(1000)])
            drafts.append(drafter.draft([guest.wanted(turn)])[0])
            commit(guest, turn)
        guest.one.follower.close()
    return drafts


def together(drafter, drawn, data):
    """Return the same of batches: pieces of any size, of some sessions, in any order."""
    guests, drafts = guests_of(drawn), {}
    for guest in guests:
        guest.begin(drafter)
    for turn in range(ROUNDS):
        while behind := [guest for guest in guests if guest.is_behind]:
            some = data.draw(st.permutations(behind))[: data.draw(st.integers(1, len(behind)))]
            drafter.extend([guest.rows(data.draw(st.integers(1, 90))) for guest in some])
        order = data.draw(st.permutations(range(len(guests))))
        wanted = [guests[place].wanted(turn) for place in order]
        drafts |= {
            (place, turn): one for place, one in zip(order, drafter.draft(wanted), strict=True)
        }
        for guest in guests:
            commit(guest, turn)
    for guest in guests:
        guest.one.follower.close()
    return [drafts[place, turn] for place in range(len(guests)) for turn in range(ROUNDS)]


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=GUESTS, data=st.data())
def test_sessions_do_not_feel_each_other(everywhere, drawn, data):
    """Whatever they are, however they are cut, and whichever pages they get."""
    assert together(everywhere, drawn, data) == alone(everywhere, drawn)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_taps_that_are_no_numbers_stay_in_their_session(everywhere, bad):
    """Also in the pages that another session gets afterwards."""
    plan, sampling = Plan(3, 2, 8), SamplingParams(temperature=0)
    session = PlayedSession(prompt_len=100)
    taps = session.taps()
    drafts = []
    for beside in (taps, torch.full_like(taps, bad)):
        both = [Followed.by(everywhere), Followed.by(everywhere)]
        everywhere.extend(
            [
                both[0].rows(0, session.tokens[1:], taps),
                both[1].rows(0, session.tokens[1:], beside),
            ]
        )
        drafts.append(
            everywhere.draft([one.wanted(session.tokens, plan, sampling) for one in both])[0]
        )
        for one in both:
            one.follower.close()

    after = Followed.by(everywhere)
    after.extend(0, session.tokens[1:], taps)
    drafts.append(after.draft(session.tokens, plan, sampling))
    after.follower.close()

    assert drafts == [drafts[0]] * 3
    assert all(torch.tensor(drafts[0].logprobs).isfinite())
