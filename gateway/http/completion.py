"""`/v1/completions`: its requests, and the shapes that its answers alone have."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from gateway.http.asked import Asked
from gateway.http.envelope import Api
from gateway.http.fields import SharedFields, TokenIds
from gateway.http.token_logprobs import TokenLogprob, shown
from protos import gateway_pb2 as pb

# OpenAI's.
DEFAULT_MAX_TOKENS = 16


def _one_prompt(prompt: Any) -> Any:
    """Return the only one of a batch. Raises ValueError for another number of them."""
    if not isinstance(prompt, str | list):
        raise ValueError(f"must be a text or a list of token ids, got {prompt!r:.80}")
    if isinstance(prompt, str) or not any(isinstance(one, str | list) for one in prompt):
        return prompt
    if len(prompt) != 1:
        raise ValueError(f"one prompt a request, got {len(prompt)}")
    return prompt[0]


class CompletionFields(SharedFields):
    """A request to go on with a text, or with token ids."""

    prompt: Annotated[str | TokenIds, BeforeValidator(_one_prompt)]
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


def ask(body: Mapping[str, Any]) -> Asked:
    """Return what a completion asks for. Raises ValueError, pydantic's included."""
    fields = CompletionFields.model_validate(body)
    longest = DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
    generation = fields.to_proto(longest, fields.logprobs)
    if isinstance(fields.prompt, str):
        generation.text = fields.prompt
    else:
        generation.token_ids.CopyFrom(pb.TokenIds(ids=fields.prompt))
    return Asked.of(fields, generation, fields.logprobs)


def _whole(text: str) -> dict[str, Any]:
    return {"text": text}


def _delta(text: str, *, first: bool) -> dict[str, Any]:
    del first
    return {"text": text}


def _logprobs(tokens: list[TokenLogprob], offset: int) -> dict[str, Any]:
    """`offset` is how many characters the tokens before these have."""
    lengths = [len(one.text) for one in tokens]
    return {
        "tokens": [one.text for one in tokens],
        "token_logprobs": [shown(one.logprob) for one in tokens],
        "top_logprobs": [_by_text(one) for one in tokens],
        "text_offset": list(accumulate(lengths, initial=offset))[:-1],
    }


def _by_text(token: TokenLogprob) -> dict[str, float]:
    """The likeliest and the chosen one; of those that look alike the likeliest."""
    pairs = [*token.top, (token.text, token.logprob)]
    return {text: shown(logprob) for text, logprob in reversed(pairs)}


COMPLETION = Api("cmpl", "text_completion", "text_completion", ask, _whole, _delta, _logprobs)
