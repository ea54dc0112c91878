"""Trees that grow on a GPU are those of the draft service's `TreeGrowth`, node for node.

Legend: S trees, W places of a frontier, M nodes, T places of a tree, C candidates.
"""

import math
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draft_service.tree_growth import Candidate, TreeGrowth
from kernels import tree
from kernels.gpu.candidates import Candidates
from kernels.gpu.draft_tree import DraftTrees, draft_trees
from kernels.gpu.frontier import Frontier, Nodes, Plans, grow, num_nodes
from protos.messages import Plan
from tests.kernels.gpu.proofs.memory_guard import launch_guarded

ROOT = 999


class Language:
    """What may follow a path of tokens, best first. Coarse scores tie, fine ones are summed."""

    def __init__(self, seed, coarse, likely):
        self.seed, self.coarse, self.likely = seed, coarse, likely

    def __call__(self, path, width):
        draw = Random(f"{self.seed} {path}")
        tokens = draw.sample(range(500), width)
        scores = sorted((self._score(draw) for _ in tokens), reverse=True)
        return [
            Candidate(token, score, float(torch.tensor(-draw.random())))
            for token, score in zip(tokens, scores, strict=True)
        ]

    def _score(self, draw):
        if draw.random() > self.likely:
            return -math.inf
        return -draw.randrange(6) / 2 if self.coarse else float(torch.tensor(-5 * draw.random()))


def expected(plan, language):
    """The draft of the service, of the same candidates."""
    growth, texts = TreeGrowth(plan), {}
    while growth.frontier:
        rows = growth.paths() if growth.depth else [()]
        for path, node in zip(rows, growth.frontier, strict=True):
            if path:
                texts[path[-1]] = (*(texts[path[-2]] if len(path) > 1 else ()), node.token)
        spoken = [texts[path[-1]] if path else () for path in rows]
        growth.expand([language(text, 16)[: growth.width] for text in spoken])
    return growth.draft()


def unwritten(*shape, dtype=torch.int64):
    return torch.full(shape, -9, dtype=dtype)


class Growing:
    """Trees in buffers, and what each row of their frontiers says."""

    def __init__(self, plans, languages, width, depth):
        self.languages, self.width, self.trees = languages, width, len(plans)
        self.widths = [min(plan.top_k, plan.draft_tokens - 1, width) for plan in plans]
        self.plans = Plans(
            torch.tensor(self.widths, dtype=torch.int32),
            torch.tensor([plan.steps for plan in plans], dtype=torch.int32),
        )
        shape = self.trees, num_nodes(width, depth)
        self.nodes = Nodes(
            unwritten(*shape),
            unwritten(*shape, dtype=torch.int32),
            torch.full(shape, -torch.inf, dtype=torch.float64),
            unwritten(*shape, dtype=torch.float32),
        )
        self.frontier = None
        self.texts = [()] * self.trees

    def step(self, depth, launch):
        """Grow by a level, and let every row say what its path does."""
        shape, before = (self.trees, self.width), self.frontier
        after = Frontier(
            unwritten(*shape),
            unwritten(*shape, dtype=torch.int32),
            unwritten(*shape, dtype=torch.float64),
            unwritten(*shape),
            unwritten(*shape),
        )
        arguments = self._candidates(), self.plans, self.nodes, before, after, depth
        launch(lambda: grow(*arguments), *self.nodes, *after)
        sources, tokens = after.sources_SW.flatten().tolist(), after.tokens_SW.flatten().tolist()
        pairs = zip(sources, tokens, strict=True)
        self.texts = [(*self.texts[source], token) for source, token in pairs]
        self.frontier = after

    def _candidates(self):
        rows_of_tree = len(self.texts) // self.trees
        said = [
            self.languages[row // rows_of_tree](text, 16)[: self.width]
            for row, text in enumerate(self.texts)
        ]
        tokens, scores, logprobs = (
            torch.tensor([[getattr(one, name) for one in row] for row in said])
            for name in Candidate._fields
        )
        return Candidates(tokens, scores, logprobs)


def plainly(launch, *_written):
    launch()


def drafted(plans, languages, width, depth, places, launch=plainly):
    """Return tokens, parents and log-probabilities of each tree without its root."""
    growing = Growing(plans, languages, width, depth)
    for level in range(1, depth + 1):
        growing.step(level, launch)
    count = len(plans)
    trees = DraftTrees(
        unwritten(count, places),
        unwritten(count, places, dtype=torch.int32),
        unwritten(count, places, dtype=torch.float32),
        unwritten(count, dtype=torch.int32),
    )
    sizes = torch.tensor([plan.draft_tokens for plan in plans], dtype=torch.int32)
    arguments = growing.nodes, sizes, torch.full((count,), ROOT), trees
    launch(lambda: draft_trees(*arguments), *trees)
    return [tuple(part[row] for part in trees) for row in range(count)]


def assert_is_the_draft(found, draft):
    tokens_T, parents_T, logprobs_T, size = found
    end = int(size)
    assert tokens_T[:end].tolist() == [ROOT, *draft.tokens]
    assert parents_T[:end].tolist() == [-1, *draft.parents]
    assert logprobs_T[:end].tolist() == [0.0, *draft.logprobs]
    assert not tokens_T[end:].any()
    assert not parents_T[end:].any()
    assert not logprobs_T[end:].any()


@settings(max_examples=10)
@given(
    st.integers(0, 2**32), st.sampled_from([(1, 5), (2, 4), (3, 3), (5, 3), (8, 2)]), st.booleans()
)
def test_trees_are_those_of_the_draft_service(seed, bucket, coarse):
    """Of plans as large as the bucket and smaller, with rows that say little."""
    (width, depth), draw = bucket, Random(seed)
    plans = [
        Plan(draw.randint(1, depth), draw.randint(1, width), draw.randint(2, 30)) for _ in range(2)
    ]
    languages = [Language(seed + n, coarse, draw.choice([1.0, 0.6])) for n in range(2)]
    found = drafted(plans, languages, width, depth, places=32)
    for one, plan, language in zip(found, plans, languages, strict=True):
        assert_is_the_draft(one, expected(plan, language))


def test_the_largest_tree_of_a_bucket():
    """Eight wide, six levels deep, 64 nodes; no program meets another."""
    plan, language = Plan(6, 8, 64), Language(3, False, 1.0)
    (found,) = drafted([plan], [language], 8, 6, 64, launch_guarded)
    assert_is_the_draft(found, expected(plan, language))


@pytest.mark.parametrize("plan", [Plan(0), Plan(3, 2, 1)])
def test_a_plan_without_room_is_a_root(plan):
    (found,) = drafted([plan], [Language(1, True, 1.0)], 2, 3, 8)
    assert int(found[3]) == 1
    assert found[0].tolist() == [ROOT] + [0] * 7


@pytest.mark.parametrize("coarse", [True, False])
def test_a_frontier_is_the_best_of_its_level_and_knows_its_rows(coarse):
    """Its ancestors are the rows that its path went through."""
    plans, languages = [Plan(3, 3, 20)] * 2, [Language(n, coarse, 0.8) for n in (1, 2)]
    growing = Growing(plans, languages, 3, 3)
    paths = [()] * 2
    for depth in (1, 2):
        growing.step(depth, launch_guarded)
        frontier = growing.frontier
        rows = range((depth - 1) * 3, depth * 3)
        sources = frontier.sources_SW.flatten().tolist()
        paths = [(*paths[source], rows[n % 3]) for n, source in enumerate(sources)]
        masks = [sum(1 << row for row in path) for path in paths]
        is_node = (frontier.nodes_SW >= 0).flatten()
        assert is_node.any()
        kept = [mask for mask, node in zip(masks, is_node, strict=True) if node]
        assert frontier.ancestors_SW.flatten()[is_node].tolist() == kept
        for scores_W, nodes_W in zip(frontier.scores_SW, frontier.nodes_SW, strict=True):
            assert torch.equal(scores_W, scores_W.sort(descending=True).values)
            assert ((nodes_W < 0) == scores_W.isneginf()).all()
    growing.step(3, launch_guarded)
    assert (growing.frontier.nodes_SW == -1).all(), "no level follows the last one"


def test_the_first_nodes_are_the_tree_of_fewer():
    """So a tree can be trimmed from its end."""
    large, small = (
        drafted([Plan(3, 4, count)], [Language(5, True, 1.0)], 4, 3, 64)[0] for count in (40, 11)
    )
    assert int(small[3]) == 11
    assert all(torch.equal(a[:11], b[:11]) for a, b in zip(large[:3], small[:3], strict=True))
    assert tree.depths(small[1][:11].tolist())[0] == 0


def test_sums_along_a_path_are_doubles():
    """As Python adds: in float32 the first grandchild would tie with the second, and lead."""
    little, none = -(2.0**-25), -math.inf
    says = {(): (-4.0, -4.0), (1,): (little, none), (2,): (0.0, none)}

    def language(path, _):
        return [Candidate(len(path) * 2 + n, score, -0.5) for n, score in enumerate(says[path], 1)]

    plan = Plan(2, 2, 8)
    (found,) = drafted([plan], [language], 2, 2, 8)
    assert_is_the_draft(found, expected(plan, language))
    assert found[1][:5].tolist() == [-1, 0, 0, 2, 1]
