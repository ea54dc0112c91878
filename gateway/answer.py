"""From committed tokens to chunks of an answer: stop conditions, text, what goes with each token.

Sans-I/O. Tokens are taken one at a time, so an answer ends at exactly the same token whether they
were committed one or six at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.detokenizer import IncrementalDetokenizer
from gateway.sampling_params import Stopping
from gateway.stop_strings import StopStrings
from gateway.tokenizer import Tokenizer
from protos.messages import TopLogprobs


@dataclass(frozen=True)
class Finish:
    """Why an answer ended."""

    reason: str  # "stop" or "length"
    stop_token_id: int | None = None
    stop_string: str | None = None


@dataclass(frozen=True)
class Chunk:
    """What one round added to the answer."""

    token_ids: tuple[int, ...]
    # What came out with each token; it may lag behind.
    texts: tuple[str, ...]
    logprobs: tuple[float, ...]
    top_logprobs: tuple[TopLogprobs, ...]
    finish: Finish | None

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Answer:
    """The answer so far."""

    def __init__(self, tokenizer: Tokenizer, stopping: Stopping) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer)
        self._stop_strings = StopStrings(
            stopping.stop_strings, include=stopping.include_stop_strings
        )
        self._stopping = stopping
        self.num_tokens = 0

    @property
    def remaining(self) -> int:
        """How many more tokens it may have."""
        return self._stopping.max_new_tokens - self.num_tokens

    def push(
        self,
        tokens: Sequence[int],
        logprobs: Sequence[float],
        top_logprobs: Sequence[TopLogprobs],
    ) -> Chunk:
        """Take in committed tokens up to the one that ends the answer."""
        texts: list[str] = []
        finish = None
        while finish is None and len(texts) < len(tokens):
            text, finish = self._push_one(tokens[len(texts)])
            texts.append(text)
        taken = len(texts)
        return Chunk(
            tuple(tokens[:taken]),
            tuple(texts),
            tuple(logprobs[:taken]),
            tuple(top_logprobs[:taken]),
            finish,
        )

    def _push_one(self, token: int) -> tuple[str, Finish | None]:
        self.num_tokens += 1
        if self._may_stop and token in self._stopping.stop_token_ids:
            return self._end(Finish("stop", stop_token_id=token))
        text, finish = self._scan(self._detokenizer.push([token]))
        if finish is None and self.remaining == 0:
            rest, finish = self._end(Finish("length"))
            text += rest
        return text, finish

    @property
    def _may_stop(self) -> bool:
        """Before min_new_tokens nothing stops an answer."""
        return self.num_tokens > self._stopping.min_new_tokens

    def _scan(self, text: str) -> tuple[str, Finish | None]:
        """Return what of the text may go out, and the stop string in it."""
        if not self._may_stop:
            return text, None
        scan = self._stop_strings.push(text)
        return scan.emit, Finish("stop", stop_string=scan.matched) if scan.matched else None

    def _end(self, finish: Finish) -> tuple[str, Finish]:
        """Let out what was held back, unless that completes a stop string after all."""
        text, stopped = self._scan(self._detokenizer.flush())
        return text + self._stop_strings.flush(), stopped or finish
