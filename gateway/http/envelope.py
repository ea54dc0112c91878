"""Answers in OpenAI's shapes: whole, or a chunk a round.

What OpenAI has no name for stands beside the rest under names of ours, which its clients pass over:
`speculation` (what speculation did), `seed` (the one in use), `simulated`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.http.asked import Asked
from gateway.http.token_logprobs import TokenLogprob, TokenTexts
from protos import gateway_pb2 as pb


class _Delta(Protocol):
    def __call__(self, text: str, *, first: bool) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Api:
    """In what the two APIs differ."""

    id_prefix: str
    whole_object: str
    chunk_object: str
    ask: Callable[[Mapping[str, Any]], Asked]
    whole: Callable[[str], dict[str, Any]]
    delta: _Delta
    logprobs: Callable[[list[TokenLogprob], int], dict[str, Any]]


class Envelope:
    """What one answer is put into."""

    def __init__(self, api: Api, asked: Asked, model_name: str, texts: TokenTexts) -> None:
        self._api = api
        self._asked = asked
        self._model_name = model_name
        self._texts = texts
        self._created = int(time.time())
        # Characters of the tokens so far.
        self._offset = 0
        # Told in the first chunk alone.
        self._prompt: pb.PromptInfo | None = None

    def whole(self, responses: Sequence[pb.GenerateResponse]) -> dict[str, Any]:
        """Return a finished answer."""
        joined = _joined(responses)
        choice = self._choice(joined, self._api.whole(joined.text))
        head = self._head(joined, self._api.whole_object)
        return {**head, "choices": [choice], **_totals(joined.finish, joined.prompt_info)}

    def chunk(self, response: pb.GenerateResponse) -> dict[str, Any]:
        """Return a part of an answer that is streamed."""
        first = self._prompt is None
        self._prompt = self._prompt or response.prompt_info
        choice = self._choice(response, self._api.delta(response.text, first=first))
        head = self._head(response, self._api.chunk_object)
        # OpenAI says null until the last chunk says how many.
        usage = {"usage": None} if self._asked.include_usage else {}
        return {**head, "choices": [choice], **usage}

    def totals(self, last: pb.GenerateResponse) -> dict[str, Any]:
        """Return the chunk after the last one: no choice, all numbers."""
        assert self._prompt is not None, "chunks come before their totals"
        head = self._head(last, self._api.chunk_object)
        return {**head, "choices": [], **_totals(last.finish, self._prompt)}

    def _head(self, response: pb.GenerateResponse, kind: str) -> dict[str, Any]:
        head = {
            "id": f"{self._api.id_prefix}-{response.request_id}",
            "object": kind,
            "created": self._created,
            "model": self._model_name,
        }
        return {**head, "simulated": True} if response.simulated else head

    def _choice(self, response: pb.GenerateResponse, words: dict[str, Any]) -> dict[str, Any]:
        finish = response.finish if response.HasField("finish") else None
        choice = {"index": 0, **words, "logprobs": self._logprobs(response)}
        choice["finish_reason"] = None if finish is None else _reason(finish)
        # vLLM's name for the token id or the string that ended it.
        choice["stop_reason"] = None if finish is None else _matched(finish)
        if self._asked.token_ids:
            choice["token_ids"] = list(response.token_ids)
            if response.HasField("prompt_info"):
                choice["prompt_token_ids"] = list(response.prompt_info.token_ids)
        return choice

    def _logprobs(self, response: pb.GenerateResponse) -> dict[str, Any] | None:
        if self._asked.num_logprobs is None:
            return None
        tokens = self._texts.logprobs(response, self._asked.num_logprobs)
        offset = self._offset
        self._offset += sum(len(token.text) for token in tokens)
        return self._api.logprobs(tokens, offset)


def _joined(responses: Sequence[pb.GenerateResponse]) -> pb.GenerateResponse:
    """Return one response in the place of several. Merging concatenates lists, not texts."""
    joined = pb.GenerateResponse()
    for response in responses:
        joined.MergeFrom(response)
    joined.text = "".join(response.text for response in responses)
    return joined


def _reason(finish: pb.FinishInfo) -> str:
    return pb.FinishInfo.Reason.Name(finish.reason).removeprefix("REASON_").lower()


def _matched(finish: pb.FinishInfo) -> int | str | None:
    which = finish.WhichOneof("matched")
    return None if which is None else getattr(finish, which)


def _totals(finish: pb.FinishInfo, prompt: pb.PromptInfo) -> dict[str, Any]:
    """Return the numbers of a whole answer."""
    usage, stats = finish.usage, finish.speculation
    return {
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_prompt_tokens},
        },
        "seed": prompt.seed,
        "speculation": {
            "rounds": stats.rounds,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "accept_length": stats.accept_length,
            "accepted_by_position": list(stats.accepted_by_position),
            "missed": stats.missed,
            "drafter_id": stats.drafter_id,
            "drafter_trouble": stats.drafter_trouble,
            "time_to_first_token_us": stats.time_to_first_token_us,
            "decode_us": stats.decode_us,
            "plans": [_plan(use) for use in stats.plans],
        },
    }


def _plan(use: pb.PlanUse) -> dict[str, int]:
    plan = use.plan
    return {
        "steps": plan.steps,
        "top_k": plan.top_k,
        "draft_tokens": plan.draft_tokens,
        "rounds": use.rounds,
    }
