"""What the reference on a CPU says of drafts: how right what was told is, and how near a tie.

The reference computes the formula in float32. It is led along the nodes of a draft, and says there
what it would have told and chosen. Roundings are measured by leading the same reference in bfloat16
along the same nodes, of some sessions:

    error     the log-probabilities that were told may be half as far from float32 again as all of
              the reference in bfloat16 are, as roots of mean squares
    missed    a token or a node that was taken may be worse than one that was not by as much as two
              scores may be off, each half as much again as the worst of the reference in bfloat16

So a tree is another than the reference's at near ties only. All nodes that were grown must be in
the draft, for a choice that nobody sees cannot be judged: plans keep all of them.

Legend: N nodes, the root first; V target's vocabulary, H hidden, X any of both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from benchmarks.gpu_check.draft_sessions import DraftLoad, PlayedSession, Table
from benchmarks.gpu_check.drafters import CheckedDrafter
from benchmarks.gpu_check.grown_tree import GrownTree
from draft_service.drafters import Draft
from draft_service.drafters.eagle3 import Eagle3Drafter
from draft_service.drafters.eagle3_follower import Eagle3Follower
from draft_service.drafters.eagle3_model import Eagle3Model
from draft_service.kv_pool import KvPool
from kernels import tree
from kernels.kv_pages import PAGE_LEN, num_pages_for
from kernels.noise import seeds_of_rows
from kernels.sampling import Filters, agreement_scores, log_normalizer

_ALLOWED = 1.5
_ROUNDED = 4
"""Sessions that roundings are measured on: in bfloat16 most CPUs are slow."""
_SCORES = 2
"""That are compared, each as far off as it may be."""


class Judgement(NamedTuple):
    """How many trees the reference grows, too; the others are over what is allowed.

    At most 1 is right.
    """

    alike: int
    error: float
    missed: float


_NO_TREE = Judgement(0, math.inf, math.inf)


class Told(NamedTuple):
    """What follows each node, as a model has it: log-probabilities and scores, [N, V] each.

    The score of a token is that of the path to it, which trees grow by.
    """

    logprobs_NV: torch.Tensor
    scores_NV: torch.Tensor

    def less(self, other: Told) -> Told:
        """Return the difference of both, of the tokens that the drafter knows, [X] each."""
        known_NV = other.logprobs_NV > -torch.inf
        pairs = zip(self, other, strict=True)
        return Told(*(ours_NV[known_NV] - its_NV[known_NV] for ours_NV, its_NV in pairs))


class Judge:
    """A drafter in float32, and in bfloat16."""

    def __init__(self, checked: CheckedDrafter) -> None:
        self._pairing = checked.pairing
        slots = checked.target.max_context_len
        self._exact, self._rounded = (
            Eagle3Model(checked.read(dtype), slots) for dtype in (torch.float32, torch.bfloat16)
        )

    @property
    def target_ids(self) -> list[int] | None:
        """The target's id of each token that the drafter knows; None if it knows all."""
        return self._exact.target_ids

    @torch.inference_mode()
    def judge(
        self, sessions: Sequence[PlayedSession], drafts: Sequence[Draft], load: DraftLoad
    ) -> Judgement:
        """Judge the drafts of the last round of a load, which has a `whole_plan`."""
        trees = _trees(sessions, drafts)
        if not all(tree.is_whole(load.plan, self._exact.config.vocab_size) for tree in trees):
            return _NO_TREE
        expected = _trees(sessions, self.drafts(sessions, load))
        alike = sum(one.says_what(other) for one, other in zip(trees, expected, strict=True))
        return Judgement(alike, *self._excess(sessions, trees))

    def drafts(self, sessions: Sequence[PlayedSession], load: DraftLoad) -> list[Draft]:
        """Return what the reference drafts."""
        drafter = Eagle3Drafter("reference", self._exact, self._pairing, load.kv_tokens)
        return Table(drafter, sessions, load.plan).round(load.rows)

    def _excess(
        self, sessions: Sequence[PlayedSession], trees: Sequence[GrownTree]
    ) -> tuple[float, float]:
        """Return error and missed, over what is allowed."""
        errors, roundings, missed = [], [], []
        for number, (session, grown) in enumerate(zip(sessions, trees, strict=True)):
            exact = self._told(self._exact, session, grown)
            nodes = list(grown.parents[1:]), list(grown.tokens[1:])
            errors.append(torch.tensor(grown.logprobs[1:]) - exact.logprobs_NV[nodes])
            missed.append(missed_by(grown, exact.scores_NV))
            if number < _ROUNDED:
                roundings.append(self._told(self._rounded, session, grown).less(exact))
        told, scores = (torch.cat(parts) for parts in zip(*roundings, strict=True))
        return (
            _size(torch.cat(errors)) / (_ALLOWED * _size(told)),
            max(missed) / (_SCORES * _ALLOWED * float(scores.abs().max())),
        )

    def _told(self, model: Eagle3Model, session: PlayedSession, grown: GrownTree) -> Told:
        """Return what a model says. The head is exact for both: kernels keep its float32 too."""
        logits_NV = self._exact.logits(_states_along(model, session, grown).float())
        positions_N = torch.tensor(tree.depths(grown.parents)) + len(session.tokens)
        seeds_N = seeds_of_rows([session.sampling.seed] * len(positions_N), positions_N.device)
        filters = Filters(session.sampling.temperature)
        scores_NV = agreement_scores(logits_NV, positions_N, seeds_N, filters)
        scores_NV = scores_NV - log_normalizer(scores_NV)
        for node in range(1, len(grown.parents)):
            scores_NV[node] += scores_NV[grown.parents[node], grown.tokens[node]]
        return Told(logits_NV - log_normalizer(logits_NV), scores_NV)


def _trees(sessions: Sequence[PlayedSession], drafts: Sequence[Draft]) -> list[GrownTree]:
    pairs = zip(sessions, drafts, strict=True)
    return [GrownTree.of(draft, session.tokens[-1]) for session, draft in pairs]


def _states_along(model: Eagle3Model, session: PlayedSession, grown: GrownTree) -> torch.Tensor:
    """Return what the rows of all nodes come out as, [N, H]: the root's is the last real one."""
    count, nodes = len(session.taps_TX), len(grown.parents)
    pages = num_pages_for(count + nodes)
    kv, follower = model.new_kv(pages * PAGE_LEN), Eagle3Follower(KvPool(pages), 0)
    follower.reserve(count + nodes)
    real_TH = model.forward(
        session.tokens[1:], model.fuse(session.taps_TX), [follower.chain(count)], kv
    )
    follower.take_in(count, real_TH[-1:])
    states_NH = real_TH[-1:].repeat(nodes, 1)
    for level, paths in grown.rows():
        parents_states = states_NH[[grown.parents[node] for node in level]]
        tokens = [grown.tokens[node] for node in level]
        states_NH[level] = model.forward(tokens, parents_states, [follower.branches(paths)], kv)
    return states_NH


def missed_by(grown: GrownTree, scores_NV: torch.Tensor) -> float:
    """Return by how much something was left that was better than what was taken; at least 0.

    Of all tokens after a node, and of all nodes of a level that has another level below it.
    """
    missed = [0.0]
    for node, tokens in grown.children().items():
        left_V = scores_NV[node].index_fill(0, torch.tensor(tokens), -torch.inf)
        missed.append(float(left_V.max() - scores_NV[node, tokens].min()))
    for level in grown.levels()[1:-1]:
        scores = {n: float(scores_NV[grown.parents[n], grown.tokens[n]]) for n in level}
        taken = [scores.pop(node) for node in level if node in grown.parents]
        missed.append(max(scores.values(), default=-math.inf) - min(taken))
    return max(missed)


def _size(x_X: torch.Tensor) -> float:
    """Return the root of the mean square."""
    return float(x_X.square().mean().sqrt())
