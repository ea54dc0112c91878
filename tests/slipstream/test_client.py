"""Requests become messages, chunks become answers."""

from __future__ import annotations

import pytest

from protos import gateway_pb2 as pb
from slipstream.client import Completion, Request


def test_a_chat_string_is_a_users_message():
    """The short form of a conversation of one message."""
    message = Request(chat="hi").to_proto()

    assert [(m.role, m.content) for m in message.chat.messages] == [("user", "hi")]


@pytest.mark.parametrize(
    ("request_", "kind"),
    [
        (Request(chat=[{"role": "system", "content": "be brief"}]), "chat"),
        (Request(text=""), "text"),
        (Request(token_ids=[1, 2]), "token_ids"),
    ],
)
def test_every_kind_of_prompt_arrives_as_itself(request_, kind):
    """Also the empty text: it is for the gateway to refuse."""
    assert request_.to_proto().WhichOneof("prompt") == kind


@pytest.mark.parametrize("request_", [Request(), Request(text="a", chat="b")])
def test_exactly_one_prompt(request_):
    """None and two are refused before anything is sent."""
    with pytest.raises(ValueError, match="exactly one"):
        request_.to_proto()


def test_an_unknown_mode_is_named():
    """With the known ones."""
    with pytest.raises(ValueError, match="auto, off, fixed, got 'fast'"):
        Request(text="a", mode="fast").to_proto()


def test_what_is_left_out_stays_out_and_a_zero_is_a_zero():
    """None is not sent; temperature 0 is."""
    message = Request(text="a", sampling={"temperature": 0.0, "seed": None}).to_proto()

    assert message.sampling.HasField("temperature")
    assert not message.sampling.HasField("seed")


def test_a_completion_joins_its_chunks():
    """Tokens, text and logprobs in order; the finish of the last, the prompt of the first."""
    finish = pb.FinishInfo(
        reason=pb.FinishInfo.REASON_STOP,
        speculation={"decode_us": 2_000_000, "accepted": 1, "rounds": 1, "accept_length": 2.0},
    )
    chunks = [
        pb.GenerateResponse(
            token_ids=[1], text="a", logprobs=[-0.5], prompt_info={"token_ids": [9], "seed": 4}
        ),
        pb.GenerateResponse(token_ids=[2, 3], text="bc", logprobs=[-1, -2], finish=finish),
    ]

    done = Completion.of(chunks)

    assert (done.token_ids, done.text, done.logprobs) == ((1, 2, 3), "abc", (-0.5, -1, -2))
    assert (done.finish_reason, done.prompt.seed) == ("stop", 4)
    assert done.statistics()["tokens_per_second"] == 1.0
