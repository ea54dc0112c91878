"""A round's parts add up to the round."""

from __future__ import annotations

import pytest

from benchmarks.round_parts import PARTS, mean_parts_ms
from protos.messages import DraftTimings, VerifyTimings
from tests.benchmarks.measured import round_of

ROUND = round_of(10_000, DraftTimings(100, 700, 200), VerifyTimings(300, 5000, 400, 4))


def test_the_parts_of_a_round_are_the_round():
    parts = mean_parts_ms([ROUND, ROUND])
    assert list(parts) == list(PARTS)
    assert parts == {"draft": 0.9, "verify": 5.4, "other": 0.4, "hops": 3.3}
    assert sum(parts.values()) == pytest.approx(10)


def test_a_draft_begun_before_its_round_leaves_hops_of_nothing():
    early = round_of(1000, DraftTimings(0, 900, 0), VerifyTimings(0, 500, 0, 1))
    assert mean_parts_ms([early])["hops"] == 0


def test_without_rounds_all_parts_are_zero():
    assert set(mean_parts_ms([]).values()) == {0}
