"""Forced acceptance: the accept length that was asked for, of trees that are deep enough."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos import target_pb2 as pb
from target_service.forced_acceptance import ForcedAcceptance
from tests.target_service.served_target import open_request, serve
from tests.target_service.waiting import until

CHAIN = (-1, 0, 1, 2, 3, 4, 5, 6)
# Whose answer the model would never give: token 0 again and again.
WRONG = [0] * 5


def accept_lengths(forced: ForcedAcceptance, parents, rounds: int) -> list[int]:
    """Return how many tokens each round commits."""
    lengths = []
    for _ in range(rounds):
        lengths.append(len(forced.path(parents)) + 1)
        forced.committed()
    return lengths


@given(st.floats(1, len(CHAIN)), st.integers(1, 60))
def test_the_average_is_what_was_asked_for(wanted, rounds):
    """To within one token of all rounds together."""
    committed = sum(accept_lengths(ForcedAcceptance(wanted), CHAIN, rounds))
    assert abs(committed - wanted * rounds) <= 1 + 1e-6


@given(st.floats(1, len(CHAIN)))
def test_every_round_is_next_to_the_average(wanted):
    for length in accept_lengths(ForcedAcceptance(wanted), CHAIN, 20):
        assert abs(length - wanted) < 1 + 1e-6


def test_what_a_shallow_tree_lacks_is_not_made_up_for():
    forced = ForcedAcceptance(3.0)
    assert accept_lengths(forced, (-1, 0), 5) == [2] * 5
    assert accept_lengths(forced, CHAIN, 2) == [3, 3]


def test_the_path_is_of_first_children():
    assert ForcedAcceptance(3.0).path((-1, 0, 0, 2, 1, 4)) == [1, 4]


def test_looking_at_a_tree_changes_nothing():
    forced = ForcedAcceptance(2.5)
    assert forced.path(CHAIN) == forced.path(CHAIN)


@pytest.mark.parametrize("wanted", [0.5, 65, float("nan"), float("inf"), -1])
def test_what_no_tree_can_give_is_refused(wanted):
    with pytest.raises(ValueError, match=r"forced_accept_length must be in \[1, 64\]"):
        ForcedAcceptance(wanted)


async def test_wrong_drafts_are_committed_and_the_models_own_token_follows(tiny):
    """The bonus token is what the model says after the forced text."""
    async with serve(tiny, allows_forced_acceptance=True) as target:
        session = await target.open(open_request(forced_accept_length=3.5)).begin()
        verdicts = [await session.verify(WRONG, range(5)) for _ in range(8)]
        assert sum(len(verdict.tokens) for verdict in verdicts) == 8 * 3.5
        honest = await target.open(
            open_request(session.prompt + session.answer[:-1], session_id="b")
        ).begin()
        assert honest.answer == session.answer[-1:]
        assert set(session.answer[1:3]) == {0}


async def test_only_a_target_that_was_started_for_it_forces(target):
    """By name of the flag."""
    session = await target.open(open_request(forced_accept_length=2)).send_first()
    code, details = await session.refusal()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "--allow-forced-acceptance" in details


async def test_a_value_over_the_limit_is_refused_by_name(tiny):
    async with serve(tiny, allows_forced_acceptance=True) as target:
        session = await target.open(open_request(forced_accept_length=0.5)).send_first()
        code, details = await session.refusal()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "forced_accept_length must be in [1, 64], got 0.5" in details


async def test_text_of_nobody_is_never_recorded(tiny):
    """Recorders hear of the honest session alone."""
    async with serve(tiny, allows_forced_acceptance=True) as target:
        watching = target.stub.WatchSessions(pb.WatchSessionsRequest())
        told: list[str] = []

        async def listen() -> None:
            async for one in watching:
                told.append(one.session_id)

        listening = asyncio.create_task(listen())
        await until(lambda: target.servicer._watch._watchers)
        await target.open(
            open_request(session_id="forced", recordable=True, forced_accept_length=2)
        ).begin()
        await target.open(open_request(session_id="honest", recordable=True)).begin()
        await until(lambda: told)
        assert told == ["honest"]
        listening.cancel()
