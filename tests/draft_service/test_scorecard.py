"""The accept length is 1 + accepted / rounds, to the last round."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draft_service.scorecard import Scorecard
from draft_service.scoring import Scored


def scored(accepted: int, *, drafted: bool = True) -> Scored:
    return Scored(5, (1,) if drafted else (), accepted, (0, 1, 2))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5))))
def test_counts_add_up(rounds):
    card = Scorecard()
    for session, accepted in rounds:
        card.count(session, scored(accepted))
        if accepted == 5:
            card.end(session)

    total = sum(accepted for _, accepted in rounds)
    assert (card.rounds, card.accepted) == (len(rounds), total)
    assert sum(card.accepted_by_position) == total
    assert card.accepted_by_position == sorted(card.accepted_by_position, reverse=True)
    assert card.accept_length == pytest.approx(1 + total / max(len(rounds), 1))
    low, high = card.interval()
    assert not rounds or low - 1e-9 <= card.accept_length <= high + 1e-9


def test_a_silent_round_is_a_round():
    card = Scorecard()
    card.count("s", scored(0, drafted=False))
    card.count("s", scored(3))

    assert (card.rounds, card.drafted_rounds, card.accept_length) == (2, 1, 2.5)
