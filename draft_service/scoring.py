"""Each draft against the tokens that the target committed after it. Sans-I/O.

A draft is scored once as many tokens have followed it as it could be deep, whichever of them were
verified. So it does not matter what the gateway trimmed, missed or never was sent, and drafts near
the end of a session, of which the wrong ones would be decided first, do not bend the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from draft_service.drafters import Draft
from kernels import tree
from protos.messages import Plan

_NO_TOKEN = -1


class Scored(NamedTuple):
    """One round of one drafter: one committed_len of one session."""

    committed_len: int
    guesses: tuple[int, ...]
    """What it drafted as the next token, its first guess first. Empty: it drafted nothing."""
    accepted: int
    """How many drafts, from the root down, the target committed."""
    context: tuple[int, ...]
    """The root, and what was committed after it."""

    @property
    def accept_length(self) -> int:
        return 1 + self.accepted


class _Pending(NamedTuple):
    draft: Draft
    depth: int


class DraftedRounds:
    """One session's drafts whose following tokens are not all known yet."""

    def __init__(self) -> None:
        self._pending: dict[int, _Pending] = {}

    def draft(self, committed_len: int, draft: Draft, plan: Plan) -> None:
        """A draft was made of what follows so many tokens. A second one for them replaces it."""
        depth = min(plan.steps, plan.draft_tokens - 1)
        self._pending[committed_len] = _Pending(draft, max(depth, 1))

    def commit(self, tokens: Sequence[int]) -> list[Scored]:
        """These are all committed tokens now. Returns what that decides, oldest first."""
        decided = [at for at, one in self._pending.items() if at + one.depth <= len(tokens)]
        return [_score(at, self._pending.pop(at), tokens) for at in decided]


def _score(committed_len: int, pending: _Pending, tokens: Sequence[int]) -> Scored:
    draft = pending.draft
    context = tuple(tokens[committed_len - 1 : committed_len + pending.depth])
    parents = (-1, *draft.parents)
    # Deeper than it was asked to draft, nothing is right.
    truth = [*context[1:], _NO_TOKEN]
    chosen = [truth[min(depth, pending.depth)] for depth in tree.depths(parents)]
    path, _ = tree.agreed_path(parents, (_NO_TOKEN, *draft.tokens), chosen)
    guesses = tuple(
        token for token, parent in zip(draft.tokens, draft.parents, strict=True) if parent == 0
    )
    return Scored(committed_len, guesses, len(path), context)
