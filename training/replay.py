"""A served drafter on recorded conversations: the rounds that a target would have had with it.

The drafter is the one that serves, with its own cache and kernels, fed with the recorded taps. What
the target would have said is what it did say; so rounds fall as they would fall, and no target is
needed. Sessions play side by side, a batch at a time.

Legend: X tapped width.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch

from draft_service.drafters import Draft, Drafter, Rows, Wanted
from draft_service.scoring import DraftedRounds, Scored
from draft_service.tree_growth import max_rows
from protos.messages import Plan
from training.sample import Sample


@dataclass(frozen=True)
class Round:
    """One round of one sample."""

    sample: Sample
    scored: Scored
    logprobs: tuple[float, ...]
    """The drafter's own, of the drafts of a chain from the root down."""


@dataclass
class _Playing:
    """A sample on its way through its answers."""

    sample: Sample
    follower: Any
    tokens: list[int]
    answers: list[tuple[int, int]]
    committed_len: int = 0
    taken: int = 0
    rounds: DraftedRounds = field(default_factory=DraftedRounds)

    @classmethod
    def begin(cls, sample: Sample, drafter: Drafter[Any]) -> _Playing:
        tokens = sample.tokens_N.tolist()
        playing = cls(sample, drafter.follow(0), tokens, list(sample.facts.answers))
        playing._go_to_next_answer()
        return playing

    @property
    def is_over(self) -> bool:
        """Whether no round is left."""
        return not self.answers

    def rows(self, columns: torch.Tensor) -> Rows[Any]:
        """Return the rows that the target has taps for and the drafter has not seen."""
        base, end = self.taken, self.committed_len - 1
        self.follower.reserve(end - base)
        self.taken = end
        taps_TX = self.sample.taps_TX[base:end, columns]
        return Rows(self.follower, base, self.tokens[base + 1 : end + 1], taps_TX)

    def wanted(self, plan: Plan) -> Wanted[Any]:
        """Return what is to be drafted now."""
        self.follower.reserve(max_rows(plan))
        sampling = self.sample.facts.sampling
        return Wanted(self.follower, self.tokens[: self.committed_len], plan, sampling)

    def verify(self, draft: Draft, plan: Plan) -> Round | None:
        """Commit what of a draft is right, and one token more; None if the answer ends too soon.

        A round whose deepest draft lies behind the end would not be judged in full.
        """
        end = self.answers[0][1]
        self.rounds.draft(self.committed_len, draft, plan)
        scored = self.rounds.commit(self.tokens[:end])
        if not scored:
            self.answers.pop(0)
            self._go_to_next_answer()
            return None
        self.committed_len += scored[0].accept_length
        if self.committed_len >= end:
            self.answers.pop(0)
            self._go_to_next_answer()
        return Round(self.sample, scored[0], draft.logprobs)

    def _go_to_next_answer(self) -> None:
        """Commit the tokens before the next answer, and its first: that one is the prompt's."""
        self.rounds = DraftedRounds()
        while self.answers and self.answers[0][1] - self.answers[0][0] < 2:
            self.answers.pop(0)
        if self.answers:
            self.committed_len = self.answers[0][0] + 1


@torch.inference_mode()
def replay(
    drafter: Drafter[Any],
    samples: Iterable[Sample],
    columns: torch.Tensor,
    plan: Plan,
    *,
    at_once: int = 16,
) -> Iterator[Round]:
    """Yield the rounds of all samples. `columns` are those of the taps that the drafter reads."""
    begun = (_Playing.begin(sample, drafter) for sample in samples)
    coming = (one for one in begun if not _ended(one))
    playing = list(islice(coming, at_once))
    while playing:
        drafter.extend([one.rows(columns) for one in playing])
        drafts = drafter.draft([one.wanted(plan) for one in playing])
        yield from _rounds(playing, drafts, plan)
        going_on = [one for one in playing if not _ended(one)]
        playing = [*going_on, *islice(coming, at_once - len(going_on))]


def _rounds(playing: Sequence[_Playing], drafts: Sequence[Draft], plan: Plan) -> Iterator[Round]:
    for one, draft in zip(playing, drafts, strict=True):
        if (found := one.verify(draft, plan)) is not None:
            yield found


def _ended(one: _Playing) -> bool:
    if one.is_over:
        one.follower.close()
    return one.is_over
