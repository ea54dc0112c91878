"""A session that a drafter follows alone, in batches of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from draft_service.drafters import Draft, Drafter, Follower, Rows, Wanted
from draft_service.tree_growth import max_rows
from protos.messages import Plan, SamplingParams


@dataclass
class Followed:
    """A drafter, and what it keeps of the session."""

    drafter: Drafter[Any]
    follower: Follower

    @classmethod
    def by(cls, drafter: Drafter[Any], first_row: int = 0) -> Followed:
        return cls(drafter, drafter.follow(first_row))

    def rows(self, base_len: int, tokens: Sequence[int], taps: torch.Tensor) -> Rows[Any]:
        """Return rows for a batch, with room made for them."""
        self.follower.reserve(len(tokens))
        return Rows(self.follower, base_len, tokens, taps)

    def wanted(self, tokens: Sequence[int], plan: Plan, sampling: SamplingParams) -> Wanted[Any]:
        """Return what to draft for a batch, with room made for it."""
        self.follower.reserve(max_rows(plan))
        return Wanted(self.follower, tokens, plan, sampling)

    def extend(self, base_len: int, tokens: Sequence[int], taps: torch.Tensor) -> None:
        self.drafter.extend([self.rows(base_len, tokens, taps)])

    def draft(self, tokens: Sequence[int], plan: Plan, sampling: SamplingParams) -> Draft:
        (draft,) = self.drafter.draft([self.wanted(tokens, plan, sampling)])
        return draft
