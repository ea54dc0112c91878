"""What a round costs is put together from its parts, each of which was measured."""

import pytest

from gateway.costs import Costs
from protos.messages import DraftTimings, Plan, VerifyTimings

CHAIN = Plan(2, 1, 3)


def verify(rows, work_us):
    return VerifyTimings(queue_us=7, forward_us=work_us - 10, accept_us=10, rows=rows)


def measured(sharing=1):
    """Plain steps of 10.5 ms, rounds of 14 ms with 3 rows and 2 steps."""
    costs = Costs()
    for _ in range(50):
        costs.add_plain(10_500, verify(sharing, 10_000))
        timings = (verify(3 * sharing, 11_000), DraftTimings(5, 600, 1_400))
        costs.add_round(CHAIN, "d", 3, 14_000, timings)
    return costs


def test_a_round_that_was_measured_costs_what_it_did():
    costs = measured()

    assert costs.round_us(CHAIN, "d", 3, 1) == pytest.approx(14_000)
    assert costs.plain_us(1) == pytest.approx(10_500)


def test_one_more_step_costs_as_much_as_one_of_those_measured():
    assert measured().round_us(Plan(4, 1, 3), "d", 3, 1) == pytest.approx(15_400)


def test_one_more_row_costs_what_those_measured_did():
    assert measured().round_us(CHAIN, "d", 4, 1) == pytest.approx(14_500)


def test_if_others_share_the_forward_each_row_is_one_of_every_session():
    costs = measured(sharing=4)

    assert costs.round_us(CHAIN, "d", 3, 1) == pytest.approx(14_000, rel=0.02)
    assert costs.plain_us(1) == pytest.approx(10_500, rel=0.02)
    assert costs.plain_us(12) > costs.plain_us(4)


@pytest.mark.parametrize("num_sessions", [1, 2, 8, 32])
def test_a_round_and_a_plain_step_are_of_one_load(num_sessions):
    """Also in a burst of sessions, before their forwards were measured: they differ by the rest."""
    costs = measured()

    rest_us = costs.round_us(CHAIN, "d", 1, num_sessions) - costs.plain_us(num_sessions)
    assert rest_us == pytest.approx(costs.round_us(CHAIN, "d", 1, 1) - costs.plain_us(1))


def test_a_draft_that_was_waited_for_in_vain_makes_the_next_look_dear():
    costs = measured()
    for _ in range(30):
        costs.add_miss("d", 60_000, verify(1, 10_000))

    assert costs.round_us(CHAIN, "d", 3, 1) > 20_000


def test_drafters_do_not_share_their_costs():
    costs = measured()
    timings = (verify(3, 11_000), DraftTimings(0, 0, 0))
    for _ in range(30):
        costs.add_round(CHAIN, "free", 3, 12_000, timings)

    assert costs.round_us(CHAIN, "free", 3, 1) < 12_100
    assert costs.round_us(CHAIN, "d", 3, 1) == pytest.approx(14_000, rel=0.01)


def test_a_width_that_was_never_grown_costs_what_the_nearest_does():
    costs = measured()
    timings = (verify(9, 11_500), DraftTimings(5, 600, 4_000))
    costs.add_round(Plan(2, 4, 9), "d", 9, 17_000, timings)

    assert costs.draft["d"].of(Plan(2, 5, 9)) == costs.draft["d"].of(Plan(2, 4, 9))
    assert costs.draft["d"].of(Plan(2, 2, 3)) == costs.draft["d"].of(CHAIN)


def test_nothing_is_known_before_it_was_measured():
    costs = Costs()
    assert not costs.knows_plain
    assert not costs.knows("d")
