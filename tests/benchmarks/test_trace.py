"""A trace lays a round's parts end to end inside the round, and the rounds end to end."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.trace import TRACKS, parts_of, trace
from protos import gateway_pb2 as pb
from protos.messages import DraftTimings, VerifyTimings
from tests.benchmarks.measured import round_of

MICROSECONDS = st.integers(1, 5000)
DRAFTS = st.builds(DraftTimings, MICROSECONDS, MICROSECONDS, MICROSECONDS)
VERIFIES = st.builds(VerifyTimings, MICROSECONDS, MICROSECONDS, MICROSECONDS)
DRAFTED = round_of(10_000, DraftTimings(100, 700, 200), VerifyTimings(300, 5000, 400))


@given(DRAFTS, VERIFIES, st.integers(0, 3000))
def test_parts_and_hops_fill_the_round_without_gap_or_overlap(draft, verify, left):
    parts_us = sum(vars(draft).values()) + sum(vars(verify).values())
    timings = round_of(parts_us + left, draft, verify)
    forwards = parts_of(timings, 1000.0)[::-1]
    assert forwards[0].start_us == pytest.approx(1000)
    for one, after in pairwise(forwards):
        assert one.start_us + one.duration_us == pytest.approx(after.start_us)
    assert forwards[-1].start_us + forwards[-1].duration_us == pytest.approx(1000 + parts_us + left)


def test_a_drafted_round_goes_from_the_drafter_over_the_gateway_to_the_target():
    names = [(span.track, span.name) for span in parts_of(DRAFTED, 0)[::-1]]
    assert names == [
        *(("draft service", name) for name in ("queue", "extend", "grow")),
        *(("hops", name) for name in ("draft service to gateway", "gateway to target")),
        *(("target", name) for name in ("queue", "forward", "accept")),
        ("hops", "target to gateway"),
    ]


def test_what_is_left_is_shared_by_the_hops():
    hops = [span.duration_us for span in parts_of(DRAFTED, 0) if span.track == "hops"]
    assert hops == [pytest.approx(1100)] * 3


def test_a_plain_round_has_no_drafter():
    spans = parts_of(round_of(1000, DraftTimings(), VerifyTimings(0, 800, 0)), 0)
    assert [span.name for span in spans if span.track == "hops"] == [
        "target to gateway",
        "gateway to target",
    ]
    assert "draft service" not in {span.track for span in spans}


def test_a_draft_begun_before_its_round_begins_before_it():
    early = round_of(1000, DraftTimings(0, 900, 0), VerifyTimings(0, 500, 0))
    assert min(span.start_us for span in parts_of(early, 5000)) == 5000 - 400


def test_a_trace_has_a_prompt_and_then_rounds_end_to_end():
    stats = pb.SpeculationStats(time_to_first_token_us=500, simulated=True)
    chunks = [
        pb.GenerateResponse(token_ids=[1], text="a"),
        pb.GenerateResponse(token_ids=[2, 3], text="bc", accepted_tokens=1, timings=DRAFTED),
        pb.GenerateResponse(timings=DRAFTED, finish=pb.FinishInfo(speculation=stats)),
    ]
    found = trace(chunks, {"machine": "m"})
    names = {e["pid"]: e["args"]["name"] for e in found["traceEvents"] if e["ph"] == "M"}
    assert tuple(names.values()) == TRACKS
    spans = [event for event in found["traceEvents"] if event["ph"] == "X"]
    own = [(e["name"], e["ts"], e["dur"]) for e in spans if names[e["pid"]] == "gateway"]
    assert own == [("prompt", 0, 500), ("round", 500, 10_000), ("round", 10_500, 10_000)]
    assert spans[1]["args"] == {"text": "bc", "tokens": 2, "accepted": 1, "rows": 0}
    assert found["otherData"]["machine"] == "m"
    assert found["otherData"]["simulated"]
