"""Arms take turns with the same prompts, their texts are compared, and a run is their decoding."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.adversity import timeline
from benchmarks.adversity.timeline import (
    Clients,
    TextsDifferError,
    Timeline,
    row_cost,
    run_of,
)
from benchmarks.arms import AUTO, PLAIN, fixed_arms
from benchmarks.streams import Answer
from protos import gateway_pb2 as pb
from protos.messages import Plan
from slipstream.generate import Prompt

ARMS = (PLAIN, *fixed_arms([Plan(3, 1, 4)]), AUTO)


def answer(token_ids=(4, 5, 6, 7), *, rounds=2, decode_us=1000, rows=2, times=(0.0, 0.1, 0.2)):
    speculation = pb.SpeculationStats(
        rounds=rounds, decode_us=decode_us, verify={"forward_us": 10 * rows, "rows": rows}
    )
    return Answer(
        0.0,
        list(times),
        [1] * len(times),
        list(token_ids),
        pb.FinishInfo(speculation=speculation),
    )


@pytest.fixture
def asked(monkeypatch):
    """Requests that were made, in groups that were made at once."""
    groups = []

    async def answer_all(client, requests):
        assert client == ("one" if requests[0].mode == "auto" else "another")
        groups.append(requests)
        return [answer() for _ in requests]

    monkeypatch.setattr(timeline, "answer_all", answer_all)
    return groups


def new_timeline(prompts, seed=0):
    asked = [Prompt(text, "chat") for text in prompts]
    return Timeline(Clients("one", "another"), ARMS, asked, seed)


async def test_a_cycle_is_one_run_of_every_arm_with_the_same_prompt(asked):
    found = await new_timeline(["one", "two", "three"]).cycle(4, sessions=1)

    assert found.phase == 4
    assert set(found.runs) == {"plain", "3x1x4", "auto"}
    assert sorted(group[0].mode for group in asked) == ["auto", "fixed", "off"]
    assert len({request.chat[0]["content"] for group in asked for request in group}) == 1


async def test_auto_learns_from_no_other_arm(asked):
    """Its gateway is its own: the fixture looks at who is asked."""
    await new_timeline(["one"]).cycle(0, sessions=2)

    assert len(asked) == 3


async def test_every_prompt_has_its_turn(asked):
    one = new_timeline(["one", "two", "three"])
    for _ in range(3):
        await one.cycle(0, sessions=1)

    assert {group[0].chat[0]["content"] for group in asked} == {"one", "two", "three"}


async def test_the_order_of_arms_changes_and_is_seeded(asked):
    """No arm is always the first after another."""
    orders = []
    for seed in (0, 0):
        asked.clear()
        one = new_timeline(["one"], seed)
        for _ in range(6):
            await one.cycle(0, sessions=1)
        orders.append([group[0].mode for group in asked])

    assert orders[0] == orders[1]
    assert len({tuple(orders[0][n : n + 3]) for n in range(0, 18, 3)}) > 1


async def test_many_sessions_are_of_one_arm_at_a_time(asked):
    """More sessions than prompts: some are asked twice."""
    await new_timeline(["one", "two", "three"]).cycle(0, sessions=5)

    assert [len(group) for group in asked] == [5, 5, 5]
    assert all(len({request.mode for request in group}) == 1 for group in asked)


@pytest.mark.parametrize(("sessions", "endless"), [(1, False), (3, True)])
async def test_answers_at_once_do_not_end_by_themselves(asked, sessions, endless):
    """Else fewer and fewer would be left."""
    await new_timeline(["one"]).cycle(0, sessions)

    stopping = [request.stopping for group in asked for request in group]
    assert [one["ignore_eos"] for one in stopping] == [endless] * 3 * sessions


async def test_a_changed_text_ends_the_benchmark(monkeypatch):
    """One token of one answer."""

    async def answer_all(client, requests):
        changed = requests[0].mode == "auto"
        return [answer((4, 5, 6, 8 if changed else 7)) for _ in requests]

    monkeypatch.setattr(timeline, "answer_all", answer_all)

    with pytest.raises(TextsDifferError, match="'one'"):
        await new_timeline(["one"]).cycle(0, sessions=1)


def test_one_answer_is_timed_by_the_gateway():
    """The first token is the prompt's."""
    run = run_of([answer(range(11), decode_us=500_000, rounds=4)])

    assert (run.tokens, run.seconds, run.rounds) == (10, 0.5, 4)
    assert run.rate == 20


def test_answers_at_once_are_timed_from_when_all_have_begun():
    """One from 0 to 4, one from 2 to 6, a token each second: six of their tokens, in 4 s."""
    early = answer(range(5), times=[0, 1, 2, 3, 4], rounds=3)
    late = answer(range(5), times=[2, 3, 4, 5, 6], rounds=5)

    run = run_of([early, late])

    assert (run.tokens, run.seconds, run.rounds) == (6, 4, 4)


async def test_prompts_with_short_answers_are_passed_over(monkeypatch):
    """One of three has an answer to time."""

    async def answer_all(client, requests):
        is_long = requests[0].chat[0]["content"] == "long"
        return [answer(range(50 if is_long else 1), decode_us=int(is_long))]

    monkeypatch.setattr(timeline, "answer_all", answer_all)
    one = new_timeline(["short", "long", "shorter"])

    for _ in range(3):
        assert (await one.cycle(0, sessions=1)).runs["plain"].tokens == 49


async def test_an_arm_that_hangs_is_named(monkeypatch):
    async def answer_all(client, requests):
        await asyncio.sleep(60 if requests[0].mode == "auto" else 0)
        return [answer()]

    monkeypatch.setattr(timeline, "answer_all", answer_all)
    monkeypatch.setattr(timeline, "_PATIENCE_S", 0.01)

    with pytest.raises(TimeoutError, match="auto"):
        await new_timeline(["one"]).cycle(0, sessions=1)


async def test_without_an_answer_to_time_there_is_no_cycle(monkeypatch):
    async def answer_all(client, requests):
        return [answer([5], decode_us=0)]

    monkeypatch.setattr(timeline, "answer_all", answer_all)

    with pytest.raises(ValueError, match="no prompt"):
        await new_timeline(["one", "two"]).cycle(0, sessions=1)


def test_the_cost_of_a_row_is_told_by_wider_rounds():
    """10 us for one row, 40 for three: 15 for each further one."""
    plain = pb.SpeculationStats(rounds=4, verify={"forward_us": 40, "rows": 4})
    wide = pb.SpeculationStats(rounds=2, verify={"forward_us": 80, "rows": 6})

    cost = row_cost([plain], [wide])

    assert (cost.step_us, cost.row_us) == (10, 15)


def test_without_drafts_a_row_has_no_cost_to_measure():
    plain = pb.SpeculationStats(rounds=4, verify={"forward_us": 40, "rows": 4})

    with pytest.raises(ValueError, match="drafter"):
        row_cost([plain], [plain])
