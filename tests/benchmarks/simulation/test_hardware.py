"""What a step costs is what it reads."""

import itertools
import random

import pytest

from benchmarks.simulation.architecture import H200, Architecture, Gpus
from benchmarks.simulation.hardware import Experts, Forward, Network

KIMI_K2 = Architecture(60, 10.55, 1, experts=384, per_token=8, expert=0.0440)


def test_rows_touch_the_experts_of_the_published_formula():
    """N(t) = E (1 - (1 - k/E)^t) for Kimi-K2: 8, 15.8, ... 59.5 for 1 to 8 rows (MoESD)."""
    experts = Experts(384, 8, 1.0)
    touched = [experts.touched(rows) for rows in range(1, 9)]
    assert touched == pytest.approx([8, 15.8, 23.5, 31.0, 38.4, 45.6, 52.6, 59.5], abs=0.06)


@pytest.mark.parametrize(("drafts", "added_ms"), [(2, 1.3), (3, 2.0), (7, 4.4)])
def test_draft_rows_of_one_session_add_their_experts(drafts, added_ms):
    """Kimi-K2 in FP8 on 8 H200 at 80 % of the bandwidth, by arithmetic on bytes."""
    forward = KIMI_K2.forward(Gpus(8, H200), layer_ms=0.17)
    experts_only = Forward(0, 0, experts=forward.experts)
    added = experts_only.seconds(1 + drafts, 1) - experts_only.seconds(1, 1)
    assert 1000 * added == pytest.approx(added_ms, rel=0.04)


def test_a_row_more_never_costs_more_than_the_one_before_it():
    """Where few rows share the weights, more rows share them better."""
    forward = KIMI_K2.forward(Gpus(8, H200), layer_ms=0.17)
    times = [forward.seconds(rows, 1) for rows in range(1, 200)]
    added = [b - a for a, b in itertools.pairwise(times)]
    assert all(a >= b > 0 for a, b in itertools.pairwise(added))


def test_more_gpus_and_bandwidth_make_a_step_shorter():
    slow = KIMI_K2.forward(Gpus(8, H200, 0.5), layer_ms=0.0).seconds(8, 8)
    assert KIMI_K2.forward(Gpus(8, H200, 1.0), layer_ms=0.0).seconds(8, 8) < slow
    assert KIMI_K2.forward(Gpus(16, H200, 0.5), layer_ms=0.0).seconds(8, 8) < slow


def test_taps_take_their_bytes_over_the_wire():
    """Three tokens of Kimi's taps take 0.10 ms at 10 Gb/s and 1.0 ms at 1 Gb/s."""
    rng = random.Random(0)
    for gbit_s, wanted_ms in ((10, 0.103), (1, 1.03)):
        network = Network(rtt_ms=0.0, gbit_s=gbit_s)
        assert 1000 * network.hop_s(3, rng) == pytest.approx(wanted_ms, rel=0.01)
