"""How far to speculate. Sans-I/O: knows neither tensors nor sockets.

Until costs are measured, a policy is a standing plan: what the drafter is asked for, and how much
of what it sends is verified.
"""

from __future__ import annotations

from dataclasses import dataclass

from protos.messages import DraftTree, Plan

# A chain of five: what public deployments of EAGLE-3 settle around. It costs a dense model little.
AUTO_PLAN = Plan(steps=5, top_k=1, draft_tokens=6)


@dataclass(frozen=True)
class Policy:
    """A standing plan. Without one, every round is decoded plainly."""

    plan: Plan | None

    @property
    def drafts(self) -> bool:
        """Whether a drafter is wanted at all: not for trees that are their root alone."""
        return self.plan is not None and self.plan.steps > 0 and self.plan.draft_tokens > 1

    def trim(self, tree: DraftTree, remaining: int) -> DraftTree:
        """Return what is worth verifying when at most `remaining` more tokens are wanted."""
        assert self.plan is not None, "nobody asked for this tree"
        return tree.trimmed(max(1, min(self.plan.draft_tokens, remaining)))
