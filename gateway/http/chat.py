"""`/v1/chat/completions`: its requests, and the shapes that its answers alone have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gateway.http.asked import Asked
from gateway.http.envelope import Api
from gateway.http.fields import Fields, SharedFields, UInt32
from gateway.http.token_logprobs import TokenLogprob, shown
from gateway.http.unsupported import supported_in_message
from protos import gateway_pb2 as pb

_MAX_MESSAGES = 4096
# What OpenAI calls the developer's words is the system's in the templates of models.
_ROLES = {"developer": "system"}


def _text(content: Any) -> Any:
    """Return the parts of a content as one text, a line each, as vLLM does."""
    if not isinstance(content, list):
        return content
    return "\n".join(map(_text_of_part, content))


def _text_of_part(part: Any) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
    raise ValueError(f"only parts of type text are supported, got {part!r:.80}")


def _message(message: Any) -> Any:
    return supported_in_message(message) if isinstance(message, dict) else message


class Message(Fields):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_text)]


class ChatFields(SharedFields):
    """A request for the next turn."""

    messages: Annotated[
        list[Annotated[Message, BeforeValidator(_message)]],
        Field(min_length=1, max_length=_MAX_MESSAGES, fail_fast=True),
    ]
    max_completion_tokens: UInt32 | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


def ask(body: Mapping[str, Any]) -> Asked:
    """Return what a chat asks for. Raises ValueError, pydantic's included."""
    fields = ChatFields.model_validate(body)
    if fields.top_logprobs and not fields.logprobs:
        raise ValueError(f"top_logprobs {fields.top_logprobs} needs logprobs")
    longest = fields.max_completion_tokens
    generation = fields.to_proto(
        fields.max_tokens if longest is None else longest, fields.top_logprobs
    )
    generation.chat.CopyFrom(
        pb.Chat(
            messages=[
                pb.ChatMessage(role=_ROLES.get(one.role, one.role), content=one.content)
                for one in fields.messages
            ]
        )
    )
    return Asked.of(fields, generation, (fields.top_logprobs or 0) if fields.logprobs else None)


def _whole(text: str) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": text, "refusal": None}}


def _delta(text: str, *, first: bool) -> dict[str, Any]:
    return {"delta": {"role": "assistant", "content": text} if first else {"content": text}}


def _logprobs(tokens: list[TokenLogprob], offset: int) -> dict[str, Any]:
    """The offset is not told in a chat."""
    del offset
    content = [
        {**_entry(one.text, one.logprob), "top_logprobs": [_entry(*other) for other in one.top]}
        for one in tokens
    ]
    return {"content": content, "refusal": None}


def _entry(text: str, logprob: float) -> dict[str, Any]:
    """A part of a character has no text: what stands for it must not be taken for its bytes."""
    whole = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": shown(logprob), "bytes": whole}


CHAT = Api("chatcmpl", "chat.completion", "chat.completion.chunk", ask, _whole, _delta, _logprobs)
