"""However wrong the estimates are, the loss over any stretch of time is bounded."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.purse import Purse

SECOND = 1e6
ROUNDS = st.lists(
    st.tuples(st.floats(1e3, 1e5), st.floats(-1e5, 1e5), st.booleans()), min_size=1, max_size=400
)


@given(ROUNDS)
def test_over_any_stretch_no_more_is_lost_than_a_share_and_the_limit(rounds):
    """A spell is begun only with something in the purse; the last one may overdraw it once.

    Gains that seem clear may overdraw it by half the limit.
    """
    purse = Purse()
    elapsed, net, lowest = 0.0, 0.0, 0.0
    for took_us, gain_us, clear in rounds:
        elapsed += took_us
        purse.pass_time(took_us, 1)
        if not purse.affords_spell(clear=clear):
            continue
        purse.settle(gain_us, 1)
        # The stretch that ends here and lost most.
        net = min(net + gain_us, 0.0)
        lowest = min(lowest, net)

    assert -lowest <= 0.005 * elapsed + 0.3 * SECOND + 1e5 + 1


def test_gains_are_saved_up_to_the_limit_only():
    purse = Purse()
    purse.settle(100 * SECOND, 1)
    purse.settle(-0.3 * SECOND, 1)

    assert not purse.affords_spell(clear=False)
    assert not purse.affords_spell(clear=True)


def test_what_was_gained_may_be_lost_again():
    purse = Purse(0.0)
    assert not purse.affords_spell(clear=False)
    purse.settle(0.1 * SECOND, 1)
    assert purse.affords_spell(clear=False)


def test_an_empty_purse_fills_with_time():
    purse = Purse(-0.01 * SECOND)
    assert not purse.affords_trial
    for _ in range(1000):
        purse.pass_time(0.01 * SECOND, 1)
    assert purse.affords_trial
