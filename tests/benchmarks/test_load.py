"""A rate is of the time in which all streams run; lateness is against what is usual."""

import pytest

from benchmarks.load import _lateness
from benchmarks.streams import Answer


def test_tokens_are_counted_after_the_first_moment_up_to_the_last():
    taken = Answer(0.0, times=[1.0, 2.0, 3.0, 4.0], tokens=[1, 2, 4, 8])
    assert taken.tokens_between(1.0, 3.0) == 6
    assert taken.tokens_between(0.0, 9.0) == 15


def test_lateness_is_told_in_times_of_a_chunk():
    """Chunks come every 10 ms, every 30 while the prompt is computed, one after 50."""
    times = [0.01 * i for i in range(10)]
    for gap in [0.03] * 98 + [0.05]:
        times.append(times[-1] + gap)
    other = Answer(0.0, times, [1] * len(times))
    intruder = Answer(0.095, times=[times[-1]], tokens=[1])
    found = _lateness([other], 0.095, intruder)
    assert found["usual_ms"] == pytest.approx(10)
    assert found["worst_ms"] == pytest.approx(50)
    assert found["delay"] == pytest.approx((50 - 10) / 30)
