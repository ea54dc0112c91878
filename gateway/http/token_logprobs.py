"""Tokens with what the model thought of them, by their texts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from gateway.tokenizer import Tokenizer
from protos import gateway_pb2 as pb
from protos.speculation_pb2 import TopLogprobs

# JSON has no infinity; this is what OpenAI says in its place.
_LEAST = -9999.0
_KEPT_TEXTS = 65_536


@dataclass(frozen=True)
class TokenLogprob:
    """One token of an answer; `top` are the likeliest ones in its place, best first."""

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...]


def shown(logprob: float) -> float:
    """Return a log-probability as JSON can say it."""
    return max(logprob, _LEAST)


class TokenTexts:
    """The texts of token ids, those of late kept."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._text = lru_cache(_KEPT_TEXTS)(self._look_up)

    def _look_up(self, token_id: int) -> str:
        try:
            return self._tokenizer.token_text(token_id)
        except ValueError:
            # The model's vocabulary is padded.
            return ""

    def logprobs(self, response: pb.GenerateResponse, num_top: int) -> list[TokenLogprob]:
        """Return what is to be told of a response's tokens."""
        tops: Iterable[TopLogprobs] = response.top_logprobs or [TopLogprobs()] * len(
            response.token_ids
        )
        return [
            TokenLogprob(self._text(token), logprob, self._pairs(top, num_top))
            for token, logprob, top in zip(response.token_ids, response.logprobs, tops, strict=True)
        ]

    def _pairs(self, top: TopLogprobs, num_top: int) -> tuple[tuple[str, float], ...]:
        pairs = zip(top.token_ids[:num_top], top.logprobs[:num_top], strict=True)
        return tuple((self._text(token), logprob) for token, logprob in pairs)
