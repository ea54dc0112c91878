"""A switch that is set in one process is seen in another; nothing is wrong before."""

from __future__ import annotations

from benchmarks.adversity.disturbance import Disturbance, Switch


def test_nothing_is_wrong_before_the_switch_was_set(tmp_path):
    assert Switch(tmp_path / "switch").get() == Disturbance()


def test_every_change_is_seen_by_those_that_looked_before(tmp_path):
    setter, reader = Switch(tmp_path / "switch"), Switch(tmp_path / "switch")
    states = [Disturbance(random_drafts=True), Disturbance(draft_delay_ms=2.5), Disturbance()]

    seen = []
    for state in states:
        setter.set(state)
        seen.append(reader.get())

    assert seen == states
