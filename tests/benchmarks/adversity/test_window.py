"""Windows are cut on auto's own clock, and one begins at every cycle."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.adversity.cycle import Cycle, Run
from benchmarks.adversity.window import windows
from tests.benchmarks.adversity.made_cycles import cycle


def test_a_dip_is_not_averaged_away():
    """Ten cycles of 2 s twice as fast, five of 4 s as fast as half of plain, and ten again."""
    cycles = [cycle(auto=50, plain=25)] * 10
    cycles += [cycle(1, auto=25, plain=50)] * 5
    cycles += [cycle(2, auto=50, plain=25)] * 10

    worst = min(windows(cycles, 20), key=lambda window: window.ratio.value)

    assert (worst.begin_s, worst.end_s) == (20, 40)
    assert worst.ratio.value == pytest.approx(1 / 2)


def test_a_timeline_that_fills_no_window_has_none():
    assert list(windows([cycle(auto=50, plain=50)] * 14, 30)) == []


def test_a_change_begins_a_window():
    """Whatever the cycles before it came to."""
    cycles = [cycle(auto=37, plain=50)] * 7 + [cycle(1, auto=50, plain=50)] * 20
    change_s = sum(one.runs["auto"].seconds for one in cycles[:7])

    assert change_s in [pytest.approx(window.begin_s) for window in windows(cycles, 30)]


@given(st.lists(st.floats(0.5, 20), min_size=1, max_size=40))
def test_every_window_is_filled_by_its_last_cycle(seconds):
    """None is shorter than wanted; none would be without its last cycle."""
    cycles = [Cycle(0, {"auto": Run(9, s, 9), "plain": Run(9, s, 9)}) for s in seconds]
    ends = [sum(seconds[:place]) for place in range(len(seconds) + 1)]

    for window in windows(cycles, 30):
        assert window.end_s - window.begin_s >= 30 - 1e-6
        last = max(end for end in ends if end < window.end_s - 1e-9)
        assert last - window.begin_s < 30 + 1e-6
