"""Trees from growth to acceptance: what is whole numbers there is exact.

Legend: S trees that grow, W places of a frontier, C candidates; N trees that are verified, T places
of a tree, R nodes of all trees, V vocabulary, E entries of a list.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from benchmarks.gpu_check.case import Case, Sizes, bytes_of, excess_of_equal
from draft_service.tree_growth import Candidate, TreeGrowth
from kernels import tree
from kernels.gpu.accepted_rows import Accepted, place_accepted
from kernels.gpu.candidates import Candidates
from kernels.gpu.draft_tree import DraftTrees, draft_trees
from kernels.gpu.frontier import Frontier, Nodes, Plans, grow, num_nodes
from kernels.gpu.tree_geometry import Geometry, Trees, tree_geometry
from kernels.gpu.tree_shaping import SEEN, SUPPRESSED, TreeLists, shape_trees
from kernels.gpu.tree_walk import Walked, tree_walk
from kernels.sampling import Penalties, penalized_logits
from protos.messages import Plan

_PLACES = 16
_TREES = 8
_WIDTH, _DEPTH = 4, 3
_ROOT = 7
_LISTS, _LISTED_NODES, _ENTRIES = 2, 6, 100
_EARLY = 2
_PENALTIES = Penalties(presence=0.5, frequency=0.7, repetition=1.3)


def cases(sizes: Sizes, device: torch.device) -> Iterator[Case]:
    """Yield growth, geometry with walk, what is kept of a walk, and logits shaped by a path."""
    yield _growth(device)
    yield _walk(device)
    yield _accepted(device)
    yield _shaping(sizes, device)


def _growth(device: torch.device) -> Case:
    """Trees of half of what is grown, from candidates that are there for every place."""
    levels = [_candidates(1, device), *(_candidates(_WIDTH, device) for _ in range(_DEPTH - 1))]
    ints_S = torch.full((_TREES,), _WIDTH, dtype=torch.int32, device=device)
    plans, grown = Plans(ints_S, ints_S.new_full((_TREES,), _DEPTH)), num_nodes(_WIDTH, _DEPTH)
    plan = Plan(_DEPTH, _WIDTH, grown // 2)
    nodes, frontiers = _nodes(grown, device), (_frontier(device), _frontier(device))
    longs_ST = torch.empty(_TREES, plan.draft_tokens, dtype=torch.int64, device=device)
    trees = DraftTrees(longs_ST, longs_ST.int(), longs_ST.float(), ints_S.clone())
    sizes_S, roots_S = ints_S.new_full((_TREES,), plan.draft_tokens), ints_S.long() * 0 + _ROOT

    def launch() -> None:
        for depth, candidates in enumerate(levels, start=1):
            before = None if depth == 1 else frontiers[depth % 2]
            grow(candidates, plans, nodes, before, frontiers[(depth + 1) % 2], depth)
        draft_trees(nodes, sizes_S, roots_S, trees)

    def excess() -> float:
        expected = [_grown(plan, levels, number) for number in range(_TREES)]
        return max(
            excess_of_equal(found.cpu(), torch.tensor(wanted).to(found.dtype))
            for found, wanted in zip(trees, zip(*expected, strict=True), strict=True)
        )

    return Case("grow and draft_trees", launch, tuple(trees), excess, bytes_of(*nodes, *trees))


def _candidates(places: int, device: torch.device) -> Candidates:
    """Return what may follow each place, best first."""
    tokens_RC = torch.randint(1000, (_TREES * places, _WIDTH), device=device)
    scores_RC = -5 * torch.rand(tokens_RC.shape, device=device)
    best_RC = scores_RC.sort(descending=True).values
    return Candidates(tokens_RC, best_RC, -torch.rand(tokens_RC.shape, device=device))


def _nodes(count: int, device: torch.device) -> Nodes:
    longs_SM = torch.zeros(_TREES, count, dtype=torch.int64, device=device)
    return Nodes(longs_SM, longs_SM.int(), longs_SM.double(), longs_SM.float())


def _frontier(device: torch.device) -> Frontier:
    longs_SW = torch.zeros(_TREES, _WIDTH, dtype=torch.int64, device=device)
    return Frontier(longs_SW, longs_SW.int(), longs_SW.double(), longs_SW.clone(), longs_SW.clone())


def _grown(
    plan: Plan, levels: Sequence[Candidates], number: int
) -> tuple[list[int], list[int], list[float], int]:
    """Return tokens, parents, log-probabilities and size of one of the draft service's trees."""
    growth = TreeGrowth(plan)
    for level in levels:
        rows = zip(*(part.view(_TREES, -1, _WIDTH)[number].tolist() for part in level), strict=True)
        said = [[Candidate(*one) for one in zip(*row, strict=True)] for row in rows]
        growth.expand(said[: len(growth.frontier)])
    draft = growth.draft()
    return [_ROOT, *draft.tokens], [-1, *draft.parents], [0.0, *draft.logprobs], plan.draft_tokens


def _parents(trees: int, places: int) -> list[list[int]]:
    """Draw the parents of all trees."""
    return [
        [-1, *(int(torch.randint(node, ())) for node in range(1, places))] for _ in range(trees)
    ]


def _trees(parents: list[list[int]], device: torch.device) -> Trees:
    places = len(parents[0])
    firsts_N = torch.arange(len(parents), dtype=torch.int32, device=device) * places
    parents_NT = torch.tensor(parents, dtype=torch.int32, device=device)
    return Trees(parents_NT, torch.full_like(firsts_N, places), firsts_N)


def _geometry(nodes: int, device: torch.device) -> Geometry:
    longs_R = torch.zeros(nodes, dtype=torch.int64, device=device)
    return Geometry(longs_R, longs_R.int(), longs_R.clone())


def _walked(device: torch.device) -> Walked:
    paths_NT = torch.empty(_TREES, _PLACES, dtype=torch.int32, device=device)
    longs_N = torch.zeros(_TREES, dtype=torch.int64, device=device)
    return Walked(paths_NT, longs_N.int(), longs_N, longs_N.clone())


def _walk(device: torch.device) -> Case:
    """Trees at random whose nodes carry one of two tokens, as do the choices."""
    parents = _parents(_TREES, _PLACES)
    tokens_NT = torch.randint(2, (_TREES, _PLACES), device=device)
    chosen_R = torch.randint(2, (_TREES * _PLACES,), device=device)
    longs_N = torch.zeros(_TREES, dtype=torch.int64, device=device)
    trees, geometry = _trees(parents, device), _geometry(chosen_R.numel(), device)
    walked = _walked(device)

    def launch() -> None:
        tree_geometry(trees, longs_N, geometry)
        tree_walk(trees, tokens_NT, chosen_R, geometry, longs_N, walked)

    def excess() -> float:
        expected = []
        for n, of_tree in enumerate(parents):
            chosen = chosen_R[n * _PLACES : (n + 1) * _PLACES].tolist()
            path, bonus = tree.agreed_path(of_tree, tokens_NT[n].tolist(), chosen)
            expected.append([*path, *[-1] * (_PLACES - len(path)), len(path), bonus])
        accepted_N1, bonus_N1 = walked.accepted_N[:, None], walked.bonus_N[:, None]
        found = torch.cat([walked.paths_NT, accepted_N1, bonus_N1], dim=1)
        return excess_of_equal(found, torch.tensor(expected, device=device))

    num_bytes = bytes_of(tokens_NT, chosen_R)
    return Case("tree_geometry and tree_walk", launch, tuple(walked), excess, num_bytes)


def _accepted(device: torch.device) -> Case:
    """Paths of 0 to 7 nodes, each session's rows behind those of the one before."""
    walked, lens_N = _walked(device), torch.arange(_TREES, device=device).int()
    nodes_T = torch.arange(1, _PLACES + 1, device=device).int()
    walked.paths_NT.copy_(torch.where(nodes_T <= lens_N[:, None], 2 * nodes_T, -1))
    walked.accepted_N.copy_(lens_N)
    places_N = (lens_N.cumsum(0) - lens_N).int()
    roots_N, total = 100 * lens_N, int(lens_N.sum())
    paths_NT, path_lens_N = torch.empty_like(walked.paths_NT), torch.empty_like(lens_N)
    accepted = Accepted(paths_NT, path_lens_N, lens_N.new_empty(total))

    def excess() -> float:
        whole_NT = torch.cat([torch.zeros_like(paths_NT[:, :1]), walked.paths_NT[:, :-1]], dim=1)
        rows = (roots_N[:, None] + walked.paths_NT)[walked.paths_NT >= 0]
        return max(
            excess_of_equal(accepted.paths_NT, whole_NT.clamp(min=0)),
            excess_of_equal(accepted.path_lens_N, lens_N + 1),
            excess_of_equal(accepted.kept_rows_R, rows),
        )

    def launch() -> None:
        place_accepted(walked, roots_N, places_N, accepted)

    return Case("place_accepted", launch, tuple(accepted), excess, bytes_of(*walked, *accepted))


def _shaping(sizes: Sizes, device: torch.device) -> Case:
    """Every tree has a list, which all of its nodes share; a node's own path is counted."""
    parents, vocabulary = _parents(_LISTS, _LISTED_NODES), sizes.vocabulary
    nodes = _LISTS * _LISTED_NODES
    logits_RV = torch.randn(nodes, vocabulary, device=device).bfloat16()
    listed_NE = torch.stack([torch.randperm(vocabulary)[:_ENTRIES] for _ in range(_LISTS)])
    tokens_NT = listed_NE[:, :_LISTED_NODES].contiguous().to(device)
    lists, geometry = _lists(listed_NE, device), _geometry(nodes, device)
    shaped_RV, roots_N = torch.empty(nodes, vocabulary, device=device), tokens_NT[:, 0] * 0
    trees = _trees(parents, device)

    def launch() -> None:
        tree_geometry(trees, roots_N, geometry)
        shape_trees(logits_RV, tokens_NT, geometry, lists, shaped_RV)

    def excess() -> float:
        paths = [(n, path) for n, of_tree in enumerate(parents) for path in tree.paths(of_tree)]
        return max(
            excess_of_equal(found_V.cpu(), _shaped(logits_V.cpu(), lists, n, path))
            for found_V, logits_V, (n, path) in zip(shaped_RV, logits_RV, paths, strict=True)
        )

    num_bytes = bytes_of(logits_RV, shaped_RV)
    return Case("shape_trees", launch, (shaped_RV,), excess, num_bytes)


def _lists(listed_NE: torch.Tensor, device: torch.device) -> TreeLists:
    """Return lists of tokens that were said up to twice, are suppressed, or have a bias."""
    shape = listed_NE.shape
    counts_NE, bias_NE = torch.randint(3, shape), torch.randn(shape)
    marks_NE = torch.where(torch.rand(shape) < 0.5, SEEN, SUPPRESSED)
    marks_NE[:, :_LISTED_NODES] = SEEN
    entries_NE4 = torch.stack(
        [listed_NE.int(), counts_NE.int(), marks_NE.int(), bias_NE.view(torch.int32)], dim=2
    )
    numbers_N = torch.arange(_LISTS, dtype=torch.int32)
    trees_R = numbers_N.repeat_interleave(_LISTED_NODES)
    lists = TreeLists(
        trees_R,
        torch.full_like(trees_R, _ENTRIES),
        numbers_N * _ENTRIES,
        torch.full_like(numbers_N, _EARLY),
        torch.full((_LISTS,), _PENALTIES.presence),
        torch.full((_LISTS,), _PENALTIES.frequency),
        torch.full((_LISTS,), _PENALTIES.repetition),
        entries_NE4.flatten(0, 1),
    )
    return TreeLists(*(part.to(device) for part in lists))


def _shaped(
    logits_V: torch.Tensor, lists: TreeLists, number: int, path: Sequence[int]
) -> torch.Tensor:
    """Return what the reference has of a node: the logits with bias, then penalties."""
    columns = lists.entries_E4.cpu().view(_LISTS, _ENTRIES, 4)[number].mT.contiguous()
    tokens_E, counts_E, marks_E, bias_E = columns
    too_early_E = (marks_E == SUPPRESSED) & (len(path) - 1 < _EARLY)
    added_E = bias_E.view(torch.float32).masked_fill(too_early_E, -torch.inf)
    at, zeros_V = (tokens_E.long(),), torch.zeros(logits_V.shape, dtype=torch.int64)
    counts_V = zeros_V.index_put(at, counts_E.long())
    counts_V[tokens_E[list(path[1:])].long()] += 1
    biased_V = logits_V.float().index_put(at, added_E, accumulate=True)
    seen_V = zeros_V.bool().index_put(at, marks_E == SEEN)
    return penalized_logits(biased_V[None], counts_V[None], seen_V[None], _PENALTIES)[0]
