"""Prompt lookup: what followed the last few tokens the last time they occurred in this session.

Needs no taps, no weights and no time. Texts that copy (edits, summaries, code, loops) are drafted
almost for free; others are not drafted at all. (Saxena, "Prompt lookup decoding", 2023.)
"""

from __future__ import annotations

from collections.abc import Sequence

from draft_service.drafters import Draft, Rows, Wanted
from draft_service.kv_pool import KvUsage
from kernels.prompt_lookup import PromptLookup
from protos.messages import Plan
from protos.pairing import Pairing


class NgramDrafter:
    """Drafts by looking back."""

    kind = "ngram"
    blocking = False
    kv_usage = KvUsage(0, 0)
    target_ids = None

    def __init__(self, drafter_id: str, vocab_size: int, max_context_len: int) -> None:
        self.drafter_id = drafter_id
        self.pairing = Pairing(hidden_size=0, vocab_size=vocab_size, tap_layers=())
        self.max_context_len = max_context_len

    def follow(self, first_row: int) -> NgramFollower:
        """Follow a session from anywhere: the tokens are all there is to know."""
        del first_row
        return NgramFollower()

    def extend(self, batch: Sequence[Rows[NgramFollower]]) -> None:
        """Nothing to do: `draft` is given all tokens."""

    def draft(self, batch: Sequence[Wanted[NgramFollower]]) -> list[Draft]:
        """Copy on, each session in its own text."""
        return [wanted.follower.draft(wanted.tokens, wanted.plan) for wanted in batch]


class NgramFollower:
    """Looks back in one session's text."""

    def __init__(self) -> None:
        self._lookup = PromptLookup()

    def reserve(self, num_rows: int) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""

    def draft(self, tokens: Sequence[int], plan: Plan) -> Draft:
        """Copy on, as far as the plan goes."""
        copied = self._lookup.copied(tokens, min(plan.steps, plan.draft_tokens - 1))
        return Draft(copied.tokens, tuple(range(len(copied.tokens))), copied.logprobs)
