"""The check for a device finds the drafter's step right in the interpreter, and faulty ones not."""

from dataclasses import replace
from math import nextafter

import pytest
import torch

from benchmarks.gpu_check.__main__ import line_of_step
from benchmarks.gpu_check.draft_sessions import DraftLoad, Played, play, play_sessions
from benchmarks.gpu_check.draft_steps import DraftSteps
from benchmarks.gpu_check.drafters import DrafterShape
from benchmarks.gpu_check.grown_tree import whole_plan
from draft_service import graphs
from draft_service.drafters.eagle3_gpu import growing
from draft_service.drafters.eagle3_gpu.drafter import Eagle3GpuDrafter
from tests.kernels.gpu.proofs.recorded_step import recorded

CPU = torch.device("cpu")
TINY = DrafterShape("tiny", 32, 64, 2, 1, 16, 97, 50, 12)
LOAD = DraftLoad(whole_plan(steps=2, width=2), sessions=1, context=3, committed=1, rounds=2)


@pytest.fixture(autouse=True)
def _small_buckets(monkeypatch):
    """To an interpreter padding is not free: here all rounds are of one bucket, of their size."""
    monkeypatch.setattr(graphs, "ROWS", (LOAD.sessions * LOAD.context, 256))
    monkeypatch.setattr(graphs, "SESSIONS", (LOAD.sessions, 64))


@pytest.fixture(scope="module")
def steps():
    return DraftSteps(TINY.made_up(LOAD.slots, CPU), CPU)


def test_rounds_are_the_same_launched_and_replayed_and_the_trees_are_the_references(steps):
    measured = steps.measured(LOAD, recorded)
    assert measured["right"]
    assert measured["trees_of_reference"] == measured["trees"] == LOAD.sessions
    assert measured["graphs"] == 1 < measured["launches"]
    assert f"{measured['launches']} launches in 1 graph" in line_of_step(measured)


def test_a_step_whose_guesses_are_fed_nothing_is_wrong(steps, monkeypatch):
    monkeypatch.setattr(growing, "gather_taps", lambda *_: None)
    load = replace(LOAD, rounds=1)
    sessions = play_sessions(steps.checked.config, load)
    drafter = Eagle3GpuDrafter(steps.facts, steps.weights, load.kv_tokens, None)
    played = play(drafter, sessions, load, lambda: None)
    assert not steps.judged(sessions, load, played, played)["right"]


def test_rounds_that_differ_in_a_bit_are_wrong(steps):
    """However near to the reference both of them are."""
    sessions = play_sessions(steps.checked.config, LOAD)
    (draft,) = drafts = steps.judge.drafts(sessions, LOAD)
    nearly = replace(draft, logprobs=(nextafter(draft.logprobs[0], 0.0), *draft.logprobs[1:]))
    same, other = Played([drafts], 1.0), Played([[nearly]], 1.0)
    assert steps.judged(sessions, LOAD, same, same)["right"]
    assert not steps.judged(sessions, LOAD, same, other)["right"]
