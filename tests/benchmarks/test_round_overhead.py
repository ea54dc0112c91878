"""The arithmetic of the round benchmark."""

from __future__ import annotations

from benchmarks.round_overhead import overheads_us, summarize
from protos import gateway_pb2 as pb


def test_overhead_is_what_the_two_forwards_leave():
    """The round, less what target and drafter say they computed; the prompt's chunk has none."""
    timings = pb.RoundTimings(
        round_us=1000,
        verify={"queue_us": 7, "forward_us": 600, "accept_us": 50},
        draft={"queue_us": 9, "extend_us": 100, "grow_us": 30},
    )
    chunks = [pb.GenerateResponse(), pb.GenerateResponse(timings=timings)]

    assert overheads_us(chunks) == [220]


def test_a_summary_is_in_milliseconds():
    """Median and deciles of 1 to 99 ms."""
    summary = summarize([1000 * value for value in range(1, 100)])

    assert summary == {"median_ms": 50.0, "p10_ms": 10.0, "p90_ms": 90.0, "rounds": 99}
