"""A conversation goes on, whatever becomes of one of its turns."""

from __future__ import annotations

import contextlib
import io

import grpc
from rich.console import Console

from protos import gateway_pb2 as pb
from slipstream.chat import Chat
from slipstream.generate import Options


class Refusal(grpc.RpcError):
    """What the gateway says to a prompt that is too long."""

    def code(self):
        return grpc.StatusCode.INVALID_ARGUMENT

    def details(self):
        return "the prompt is too long"


class ScriptedClient:
    """Answers with its own last words, or refuses."""

    def __init__(self):
        self.asked = []

    def stream(self, request):
        messages = [message.content for message in request.to_proto().chat.messages]
        self.asked.append(messages)
        if messages[-1] == "too long":
            raise Refusal
        yield pb.GenerateResponse(token_ids=[1, 2], text="ok", accepted_tokens=1)
        finish = {"reason": "REASON_STOP", "speculation": {"drafter_trouble": "frozen"}}
        yield pb.GenerateResponse(text="!", finish=finish)


def converse(lines):
    """Return what was asked and what was shown."""
    client, shown = ScriptedClient(), io.StringIO()
    chat = Chat(client, Options({}, {}, {}, "auto"), Console(file=shown, width=200))
    source = iter(lines)
    chat._console.input = lambda _: next(source)
    with contextlib.suppress(StopIteration):
        chat.run()
    return client.asked, shown.getvalue()


def test_a_refused_turn_does_not_enter_the_conversation():
    """The next message is sent with what was really said."""
    asked, shown = converse(["hello", "too long", "again"])

    assert asked[-1] == ["hello", "ok!", "again"]
    assert "INVALID_ARGUMENT: the prompt is too long" in shown


def test_stray_bytes_end_a_turn_not_the_conversation():
    """A lone surrogate cannot be sent; the rest can."""
    asked, shown = converse(["hi\udcff", "hi"])

    assert asked == [["hi"]]
    assert "not sent" in shown


def test_missing_drafts_are_said_in_the_summary():
    """A drafter that was wanted and did not come is no secret."""
    _, shown = converse(["hello"])

    assert "drafts were missing: frozen" in shown
