"""A request's body, parsed: what to generate, and in which shape it is wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import from_json

from gateway.http.error import HttpError
from gateway.http.fields import SharedFields, without_nulls, wrong_field
from gateway.http.unsupported import supported
from protos import gateway_pb2 as pb


@dataclass(frozen=True)
class Asked:
    """`num_logprobs` of the likeliest tokens are told beside the chosen one; None: none at all."""

    generation: pb.GenerateRequest
    model: str | None
    stream: bool
    include_usage: bool
    num_logprobs: int | None
    token_ids: bool
    timeout_s: float | None

    @classmethod
    def of(
        cls, fields: SharedFields, generation: pb.GenerateRequest, num_logprobs: int | None
    ) -> Asked:
        """Return what was asked for in fields that are checked."""
        options = fields.stream_options
        return cls(
            generation,
            model=fields.model,
            stream=fields.stream,
            include_usage=options is not None and options.include_usage,
            num_logprobs=num_logprobs,
            token_ids=fields.return_token_ids,
            timeout_s=fields.timeout_s,
        )


def parse(body: bytes, ask: Callable[[Mapping[str, Any]], Asked]) -> Asked:
    """Read a body, of a size that was bounded before. Raises HttpError saying what is wrong."""
    try:
        given = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise HttpError(400, f"the body is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise HttpError(400, f"the body must be a JSON object, got {given!r:.80}")
    try:
        return ask(without_nulls(supported(given)))
    except ValidationError as error:
        name, message = wrong_field(error)
        raise HttpError(400, message, param=name or None) from None
    except ValueError as error:
        raise HttpError(400, str(error)) from None
