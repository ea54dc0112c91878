"""A step begins where all sessions together lose least by waiting and by missing it."""

from hypothesis import given
from hypothesis import strategies as st

from target_service.company import Company, Ready

STEP_S = 0.010
NOBODY = Ready(0, 0)


def company_of(**usual_s):
    """Sessions that have always been away for so long."""
    company, now = Company(), 0.0
    for _ in range(60):
        company.step_ended(usual_s, NOBODY, now, STEP_S)
        for session, away_s in sorted(usual_s.items(), key=lambda item: item[1]):
            company.came_back(session, now + away_s)
        now += 1.0
    return company


def wait_s(company, away, ready):
    company.step_ended(away, ready, 1000.0, STEP_S)
    return company.waits_for_s(1000.0)


def test_a_session_that_never_came_back_is_not_waited_for():
    company = Company()
    company.step_ended(["new"], Ready(1, 0), 0.0, STEP_S)
    assert company.waits_for_s(0.0) == 0.0


def test_all_that_come_back_soon_are_waited_for():
    company = company_of(a=0.003, b=0.004)
    assert 0.004 <= wait_s(company, ["a", "b"], NOBODY) < 0.005


def test_one_that_takes_longer_than_it_would_cost_to_be_missed_is_not():
    """b comes 9 ms later than a: two sessions would wait for it so that it need not wait for 10."""
    company = company_of(a=0.001, b=0.010)
    assert wait_s(company, ["a", "b"], NOBODY) < 0.002


def test_waiting_ends_with_the_last_who_is_expected():
    company = company_of(a=0.003, b=0.004)
    company.step_ended(["a", "b"], NOBODY, 1000.0, STEP_S)
    company.came_back("b", 1000.002)
    assert company.waits_for_s(1000.002)
    company.came_back("a", 1000.003)
    assert not company.waits_for_s(1000.003)


def test_one_that_stays_away_is_waited_for_once():
    company = company_of(a=0.003, b=0.003)
    company.step_ended(["a", "b"], NOBODY, 1000.0, STEP_S)
    company.came_back("a", 1000.003)
    assert not company.waits_for_s(1000.004)
    company.step_ended(["a"], NOBODY, 1000.014, STEP_S)
    company.came_back("a", 1000.017)
    assert not company.waits_for_s(1000.017)


def test_a_session_that_runs_on_or_ended_is_not_waited_for():
    for leave in (Company.stays_away, Company.forget):
        company = company_of(a=0.003)
        company.step_ended(["a"], Ready(1, 0), 1000.0, STEP_S)
        assert company.waits_for_s(1000.0)
        leave(company, "a")
        assert not company.waits_for_s(1000.0)


def test_who_decodes_plainly_is_hardly_held_up():
    """One in rounds is waited for by one that takes rounds, and not by four that do not."""
    company = company_of(a=0.002)
    assert wait_s(company, ["a"], Ready(1, 0)) > 0
    assert wait_s(company, ["a"], Ready(0, 4)) == 0


@given(
    st.lists(st.floats(0.0005, 0.03), min_size=1, max_size=6),
    st.integers(0, 5),
    st.integers(0, 5),
)
def test_no_step_waits_longer_than_what_is_missed_is_worth(away_s, in_rounds, bystanders):
    """All in play together wait less than the step that the others would miss."""
    usual_s = {str(i): seconds for i, seconds in enumerate(away_s)}
    ready = Ready(in_rounds, bystanders)
    waited_s = wait_s(company_of(**usual_s), usual_s, ready)
    in_play = in_rounds + bystanders + len(away_s)
    first_s = 0.0 if ready != NOBODY else min(away_s)
    assert in_play * (waited_s - first_s * 1.1) <= len(away_s) * STEP_S + 1e-9


@given(st.data())
def test_no_order_of_events_makes_a_step_wait_for_ever(data):
    company, now, longest = Company(), 0.0, 6 * STEP_S
    for _ in range(data.draw(st.integers(1, 30))):
        away = data.draw(st.sets(st.sampled_from("abcdef")))
        company.step_ended(away, Ready(data.draw(st.integers(0, 2)), 0), now, STEP_S)
        assert company.waits_for_s(now + longest) == 0.0
        for session in data.draw(st.permutations(sorted(away))):
            now += data.draw(st.floats(0, STEP_S / 2))
            event = data.draw(st.sampled_from(["came_back", "stays_away", "forget", ""]))
            if event == "came_back":
                company.came_back(session, now)
            elif event:
                getattr(company, event)(session)
        now += STEP_S
