"""Arms take turns, answers are compared token for token, and short ones are not timed."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.arms import AUTO, PLAIN, Arm, Wish
from benchmarks.interleaved import Measurements, TextsDifferError, measure, rotated, shuffled
from protos import gateway_pb2 as pb
from protos.messages import Plan
from slipstream.generate import Prompt
from tests.benchmarks.measured import taken

FIXED = Arm.fixed(Plan(2, 1, 3))
ARMS = [PLAIN, FIXED, AUTO]
PROMPTS = [Prompt("one", "chat"), Prompt("two", "code")]
LONG = list(range(10))


def measurements(*, simulated: bool = False) -> Measurements:
    return Measurements(PROMPTS, ARMS, simulated)


def test_over_the_turns_every_arm_is_at_every_place_as_often():
    places = Counter((i, arm) for turn in range(6) for i, arm in enumerate(rotated(ARMS, turn)))
    assert set(places.values()) == {2}
    assert len(places) == 9


def test_a_random_order_is_the_same_for_the_same_turn_and_changes_with_it():
    many = [Arm.fixed(Plan(steps, 1, steps + 1)) for steps in range(1, 12)]
    assert shuffled(many, 3) == shuffled(many, 3)
    assert shuffled(many, 3) != shuffled(many, 4)
    assert set(shuffled(many, 3)) == set(many)


def test_other_tokens_are_an_error_that_names_prompt_arms_and_place():
    found = measurements()
    found.add(1, PLAIN, taken([1, 2, 3], 1))
    with pytest.raises(TextsDifferError, match=r"prompt 2 \(code\).*plain and auto.*token 3"):
        found.add(1, AUTO, taken([1, 2, 4], 1))


def test_an_answer_that_is_longer_differs():
    found = measurements()
    found.add(0, PLAIN, taken([1, 2], 1))
    with pytest.raises(TextsDifferError, match="token 3"):
        found.add(0, PLAIN, taken([1, 2, 3], 1))


def test_other_prompts_other_temperatures_and_simulations_may_differ():
    found = measurements()
    found.add(0, PLAIN, taken([1], 1))
    found.add(1, PLAIN, taken([2], 1))
    found.add(0, Arm("warm", "off", temperature=1.0), taken([3], 1))
    simulated = measurements(simulated=True)
    simulated.add(0, PLAIN, taken([1], 1))
    simulated.add(0, AUTO, taken([2], 1))


def test_a_rate_is_of_the_tokens_after_the_first_in_the_median_time():
    found = measurements()
    for seconds in (1, 2, 30):
        found.add(0, PLAIN, taken(LONG, seconds))
    assert found.rate(0, PLAIN) == pytest.approx(9 / 2)


def test_short_answers_are_not_timed():
    found = measurements()
    found.add(0, PLAIN, taken([1, 2], 1))
    found.add(1, PLAIN, taken(LONG, 1))
    assert found.timed == [1]


class Gateway:
    """Answers everything with the same tokens and keeps what it was asked."""

    def __init__(self):
        self.asked = []

    def stream(self, request):
        asked = request.to_proto()
        self.asked.append((asked.chat.messages[0].content, asked.speculation.mode))
        yield pb.GenerateResponse(token_ids=LONG)
        yield pb.GenerateResponse(finish=pb.FinishInfo())


def test_arms_answer_in_turn_after_a_warm_up():
    """In which auto learns from every task, and every prompt is read once."""
    gateway, found = Gateway(), measurements()
    measure(gateway, found, Wish(16), repeats=2)
    off, fixed, auto = (
        pb.Speculation.MODE_OFF,
        pb.Speculation.MODE_FIXED,
        pb.Speculation.MODE_AUTO,
    )
    warm_up = [("one", off), ("one", fixed), ("one", auto), ("one", auto), ("two", auto)]
    assert Counter(gateway.asked[:5]) == Counter(warm_up)
    assert gateway.asked[5:7] == [("one", off), ("two", off)]
    assert gateway.asked[7:13] == [
        *(("one", off), ("one", fixed), ("one", auto)),
        *(("two", fixed), ("two", auto), ("two", off)),
    ]
    assert all(len(answers) == 2 for answers in found.taken.values())
    assert len(found.taken) == 6
