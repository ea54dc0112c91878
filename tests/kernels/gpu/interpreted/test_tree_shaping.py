"""Logits of trees' nodes, shaped by lists of their sessions: what kernels/sampling.py gives each.

Legend: M nodes of all trees, V vocabulary, N trees, T places.
"""

import random

import numpy as np
import pytest
import torch

from kernels import tree
from kernels.gpu.tree_geometry import Geometry
from kernels.gpu.tree_shaping import SEEN, SUPPRESSED, TreeLists, shape_trees
from kernels.sampling import Penalties, penalized_logits
from tests.kernels.gpu.proofs.memory_guard import launch_guarded

V, T = 1500, 8
PARENTS = [[-1], [-1, 0, 0, 1, 2, 4], [-1, 0, 1]]
TOKENS = [[4], [3, 3, 5, 5, 3, 3], [1, 2, 2]]
EARLY = [1, 2, 0]
PENALTIES = [Penalties(0.5, 0.7, 1.3), Penalties(-0.5, 1.0, 0.9), Penalties(0.0, 0.0, 1.0)]


class Case:
    """Three trees; the second's list takes several turns of a program, the third has none."""

    def __init__(self) -> None:
        rng = random.Random(0)
        self.logits_MV = torch.randn(10, V).bfloat16()
        self.lists = [self.entries(rng, 3, [4]), self.entries(rng, 1200, TOKENS[1]), {}]

    def entries(self, rng, count, needed):
        tokens = {*needed, *rng.sample(range(V), count)}
        return {
            t: (
                rng.randrange(3),
                rng.choice([0, SEEN] if t in needed else [0, SEEN, SUPPRESSED, SEEN | SUPPRESSED]),
                rng.choice([0.0, 2.5, -100.0]),
            )
            for t in sorted(tokens)
        }

    def expected(self, number, parents, tokens, logits_V, node, path):
        counts, seen, bias = torch.zeros(V).long(), torch.zeros(V, dtype=torch.bool), torch.zeros(V)
        for token, (count, marks, added) in self.lists[number].items():
            counts[token], seen[token] = count, bool(marks & SEEN)
            early = marks & SUPPRESSED and len(path) - 1 < EARLY[number]
            bias[token] = -torch.inf if early else added
        for ancestor in path[1:] if self.lists[number] else ():
            counts[tokens[ancestor]] += 1
            seen[tokens[ancestor]] = True
        biased_1V = (logits_V.float() + bias)[None]
        return penalized_logits(biased_1V, counts[None], seen[None], PENALTIES[number])[0]

    def packed(self):
        sizes = [len(parents) for parents in PARENTS]
        numbers = [n for n, size in enumerate(sizes) for _ in range(size)]
        lengths = [len(entries) for entries in self.lists]
        rows = [
            (t, count, marks, int(np.float32(bias).view(np.int32)))
            for entries in self.lists
            for t, (count, marks, bias) in entries.items()
        ]
        per_tree = zip(*((p.presence, p.frequency, p.repetition) for p in PENALTIES), strict=True)
        return TreeLists(
            torch.tensor(numbers).int(),
            torch.tensor([lengths[n] for n in numbers]).int(),
            torch.tensor([0, *np.cumsum(lengths)[:-1]]).int(),
            torch.tensor(EARLY).int(),
            *map(torch.tensor, per_tree),
            torch.tensor(rows).int(),
        )


def geometry() -> Geometry:
    masks = [sum(1 << n for n in path) for of in PARENTS for path in tree.paths(of)]
    depths = [depth for of in PARENTS for depth in tree.depths(of)]
    return Geometry(torch.tensor(masks), torch.tensor(depths).int(), torch.zeros(10).long())


def shaped(case: Case, tokens_NT: torch.Tensor) -> torch.Tensor:
    out_MV = torch.full((10, V), torch.nan)
    shape_trees(case.logits_MV, tokens_NT, geometry(), case.packed(), out_MV)
    return out_MV


def test_a_list_is_shared_by_programs_that_do_not_meet():
    case, out_MV = Case(), torch.full((10, V), torch.nan)
    lists, of = case.packed(), geometry()
    lists.lengths_M[3:] = 0
    launch_guarded(lambda: shape_trees(case.logits_MV, tokens_of(), of, lists, out_MV), out_MV)


def tokens_of() -> torch.Tensor:
    tokens_NT = torch.full((3, T), 3)
    for one, of in zip(tokens_NT, TOKENS, strict=True):
        one[: len(of)] = torch.tensor(of)
    return tokens_NT


def test_a_node_is_shaped_by_its_session_and_its_own_path():
    case = Case()
    out_MV, node = shaped(case, tokens_of()), 0
    for number, (parents, tokens) in enumerate(zip(PARENTS, TOKENS, strict=True)):
        for path in tree.paths(parents):
            if case.lists[number]:
                logits_V = case.logits_MV[node]
                expected_V = case.expected(number, parents, tokens, logits_V, node, path)
                assert torch.equal(out_MV[node], expected_V), (number, path)
            else:
                assert out_MV[node].isnan().all(), "nothing is copied where nothing is shaped"
            node += 1


def test_a_path_that_is_not_counted_is_seen():
    case = Case()
    case.lists[1] = dict.fromkeys((3, 5), (1, 0, 0.0))
    without, with_path = shaped(case, torch.full((3, T), -1)), shaped(case, tokens_of())
    changed = [not torch.equal(a, b) for a, b in zip(without[:7], with_path[:7], strict=True)]
    assert changed == [False, False, True, True, True, True, True]


@pytest.mark.parametrize("marks", [SEEN, SUPPRESSED])
def test_marks_are_told_apart(marks):
    case = Case()
    case.lists = [{4: (0, marks, 0.0)}, {}, {}]
    token = shaped(case, tokens_of())[0, 4]
    assert (token == -torch.inf) == (marks == SUPPRESSED)
