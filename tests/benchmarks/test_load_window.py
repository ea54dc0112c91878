"""What counts in a window is what came in it."""

from __future__ import annotations

import pytest

from benchmarks.load_window import Window, in_numbers
from benchmarks.streams import Answer

# Two streams of a chunk a second: one begins before the window from 2 to 6, one in it.
EARLY = Answer(0.0, times=[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], tokens=[1, 2, 2, 2, 2, 2, 2])
LATE = Answer(3.0, times=[4.5, 5.5, 6.5], tokens=[1, 4, 4])
UNHEARD = Answer(3.0)
WINDOW = Window([EARLY, LATE, UNHEARD], 2.0, 6.0)


def test_throughput_is_of_all_tokens_that_came_in_the_window():
    assert WINDOW.tokens_per_second == (8 + 5) / 4


def test_a_first_token_counts_in_the_window_it_came_in():
    assert WINDOW.first_token_s == [1.5]


def test_a_gap_counts_in_the_window_it_ended_in():
    assert WINDOW.gaps_s == [1.0] * 4 + [1.0]


def test_the_time_a_token_takes_is_told_by_stream():
    """Chunks of two tokens a second, and of four."""
    assert WINDOW.token_s == [pytest.approx(1 / 2), pytest.approx(1 / 4)]


def test_windows_together_have_the_median_throughput_and_all_latencies():
    empty = Window([UNHEARD], 0.0, 1.0, refused=2)
    found = in_numbers([WINDOW, empty])
    assert (found["tps"], found["tps_least"], found["tps_most"]) == (1.62, 0.0, 3.25)
    assert found["first_token_ms"] == {"p50": 1500, "p99": 1500}
    assert (found["answers"], found["refused"]) == (1, 2)


def test_nothing_heard_is_no_latency():
    assert in_numbers([Window([UNHEARD], 0.0, 1.0)])["chunk_gap_ms"] is None
