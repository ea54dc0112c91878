"""What the target has done since it started: numbers that only grow, as TargetLoad tells them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protos.messages import Verdict
from target_service.session import Rows


@dataclass
class Totals:
    """Steps, their rows by kind, and what came of them. The names are those of TargetLoad."""

    steps: int = 0
    prompt_rows: int = 0
    root_rows: int = 0
    draft_rows: int = 0
    committed_tokens: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0

    @property
    def rounds(self) -> int:
        """Verdicts, those on prompts included: each adds a token that was not drafted."""
        return self.committed_tokens - self.accepted

    @property
    def accepted(self) -> int:
        """Drafts that became text."""
        return sum(self.accepted_by_position)

    def count_step(self, batch: Sequence[Rows]) -> None:
        """Add a step's rows."""
        self.steps += 1
        for rows in batch:
            self.prompt_rows += rows.num_prompt_rows
            self.root_rows += rows.root is not None
            self.draft_rows += rows.num_drafts

    def count_verdict(self, verdict: Verdict) -> None:
        """Add what a verdict committed."""
        self.committed_tokens += len(verdict.tokens)
        depth = len(verdict.path)
        self.accepted_by_position += [0] * (depth - len(self.accepted_by_position))
        for position in range(depth):
            self.accepted_by_position[position] += 1

    def count_prompt(self, num_tokens: int, num_cached: int) -> None:
        """Add a session's prompt, of which so much need not be computed."""
        self.prompt_tokens += num_tokens
        self.cached_prompt_tokens += num_cached
