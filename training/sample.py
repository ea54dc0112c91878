"""One recorded conversation: its tokens, which of them the target chose, and its taps.

Legend: N tokens, T rows of taps (N - 1), X tapped width (layers * hidden).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from protos.messages import SamplingParams

# One conversation of so many is held out: judged by, and never trained on.
_HELD_OUT_ONE_IN = 20


@dataclass(frozen=True)
class Facts:
    """What is known of a sample besides its tensors."""

    sample_id: str
    task: str
    answers: tuple[tuple[int, int], ...]
    """First and last + 1 position of everything that the target answered."""
    temperature: float
    top_p: float
    seed: int

    @property
    def held_out(self) -> bool:
        """Whether the sample is for judging only. The id alone decides, so it never changes."""
        digest = hashlib.sha256(self.sample_id.encode()).digest()
        return int.from_bytes(digest[:4], "big") % _HELD_OUT_ONE_IN == 0

    @property
    def sampling(self) -> SamplingParams:
        """How the answers were chosen."""
        return SamplingParams(temperature=self.temperature, top_p=self.top_p, seed=self.seed)

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> Facts:
        answers = tuple((begin, end) for begin, end in entry.pop("answers"))
        return cls(answers=answers, **entry)


@dataclass(frozen=True)
class Sample:
    """A conversation. Row i of the taps is the state of token i; the last token has none."""

    facts: Facts
    tokens_N: torch.Tensor
    taps_TX: torch.Tensor

    def __post_init__(self) -> None:
        rows, tokens = len(self.taps_TX), len(self.tokens_N)
        if rows != tokens - 1:
            raise ValueError(
                f"sample {self.facts.sample_id} has {tokens} tokens and {rows} rows of taps, "
                "expected one less"
            )

    @property
    def num_answered(self) -> int:
        """How many tokens the target chose."""
        return sum(end - begin for begin, end in self.facts.answers)

    @property
    def num_bytes(self) -> int:
        """What its tensors take in memory."""
        return self.taps_TX.nbytes + self.tokens_N.nbytes


def answered_mask(answers: Sequence[tuple[int, int]], num_tokens: int) -> torch.Tensor:
    """Return which tokens the target chose, [N] bool."""
    mask_N = torch.zeros(num_tokens, dtype=torch.bool)
    for begin, end in answers:
        mask_N[begin:end] = True
    return mask_N
