"""A drafter's quality is told by depth, or by one accept length."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulation.acceptance import Acceptance


def test_the_public_drafter_has_its_public_accept_lengths():
    """Kimi-K2.5's golden row, at 1 to 8 steps (InferenceX)."""
    lengths = [Acceptance().accept_length(steps) for steps in range(1, 9)]
    assert lengths == pytest.approx([1.83, 2.43, 2.88, 3.24, 3.46, 3.62, 3.71, 3.77])


@given(st.floats(1.0, 3.99), st.integers(3, 8))
def test_scaling_meets_the_accept_length_wanted(length, steps):
    scaled = Acceptance().scaled_to(length, steps)
    assert scaled.accept_length(steps) == pytest.approx(length, abs=1e-6)


def test_deeper_than_known_the_last_share_goes_on():
    acceptance = Acceptance((0.8, 0.4))
    assert acceptance.accept_length(4) == pytest.approx(1 + 0.8 + 0.4 + 0.2 + 0.1)


def test_a_drafter_that_is_never_right_commits_one_token_a_round():
    assert Acceptance((0.0,)).accept_length(5) == 1.0


@pytest.mark.parametrize("survival", [(), (0.5, 0.6), (1.2,), (0.5, -0.1)])
def test_acceptance_that_rises_with_depth_is_refused(survival):
    with pytest.raises(ValueError, match="must fall"):
        Acceptance(survival)


@pytest.mark.parametrize(("length", "steps"), [(0.9, 3), (4.0, 3)])
def test_an_accept_length_that_no_drafter_has_is_refused(length, steps):
    with pytest.raises(ValueError, match=r"must be in \[1, 4\)"):
        Acceptance().scaled_to(length, steps)
