"""Trees: geometry and walks of 64 of them, and how they grow at the size of Kimi-K2.5's drafter."""

import torch

from kernels.gpu import candidates as candidates_of
from kernels.gpu.accepted_rows import Accepted, place_accepted
from kernels.gpu.candidates import Candidates, CandidateScratch
from kernels.gpu.draft_tree import DraftTrees, draft_trees
from kernels.gpu.frontier import Frontier, Nodes, Plans, grow, num_nodes
from kernels.gpu.frontier_rows import FrontierRows, Roots, frontier_rows
from kernels.gpu.last_states import keep_last_states
from kernels.gpu.tree_geometry import Geometry, Trees, tree_geometry
from kernels.gpu.tree_walk import Walked, tree_walk
from tests.kernels.gpu.proofs.compile_spec import CompileSpec, Needs, Step, empty
from tests.kernels.gpu.specs.sampling import draw, of_rows, row_filters

TREES, PLACES, WIDTH, DEPTH, ROWS = 64, 64, 8, 6, 64
KNOWN = 32000
FLOAT, INT, LONG = torch.float32, torch.int32, torch.int64
NARROW = Needs(wide_loads=False)


def _integers(*shape: int, dtypes: tuple[torch.dtype, ...]) -> list[torch.Tensor]:
    return [empty(*shape, dtype=dtype) for dtype in dtypes]


def _trees() -> Trees:
    return Trees(empty(TREES, PLACES, dtype=INT), *_integers(TREES, dtypes=(INT, INT)))


def _geometry() -> Geometry:
    return Geometry(*_integers(TREES * PLACES, dtypes=(LONG, INT, LONG)))


def _tree_geometry() -> Step:
    trees, geometry, roots_N = _trees(), _geometry(), empty(TREES, dtype=LONG)
    return lambda count: tree_geometry(of_rows(trees, count), roots_N[:count], geometry)


def _tree_walk() -> Step:
    trees, geometry, lengths_N = _trees(), _geometry(), empty(TREES, dtype=LONG)
    tokens_NT, chosen_R = empty(TREES, PLACES, dtype=LONG), empty(TREES * PLACES, dtype=LONG)
    rest = _integers(TREES, dtypes=(INT, LONG, LONG))
    walked = Walked(empty(TREES, PLACES, dtype=INT), *rest)
    return lambda count: tree_walk(
        of_rows(trees, count),
        tokens_NT[:count],
        chosen_R,
        geometry,
        lengths_N[:count],
        of_rows(walked, count),
    )


def _accepted_rows() -> Step:
    rest = _integers(TREES, dtypes=(INT, LONG, LONG))
    walked = Walked(empty(TREES, PLACES, dtype=INT), *rest)
    roots_N, places_N, lens_N = (empty(TREES, dtype=INT) for _ in range(3))
    accepted = Accepted(empty(TREES, PLACES, dtype=INT), lens_N, empty(TREES * PLACES, dtype=INT))
    return lambda count: place_accepted(
        of_rows(walked, count), roots_N[:count], places_N[:count], accepted
    )


def _candidate_buffers(count: int) -> Candidates:
    dtypes = LONG, FLOAT, FLOAT
    return Candidates(*(empty(ROWS, count, dtype=dtype) for dtype in dtypes))


def _candidates(known: int, count: int) -> Step:
    logits_RN, blocks = empty(ROWS, known), -(-known // 1024)
    ids_N = empty(known, dtype=INT)
    shapes = (ROWS, known), (ROWS, blocks), (ROWS, 3, blocks), (ROWS, known), (ROWS,)
    buffers = [empty(*shape, dtype=FLOAT) for shape in shapes]
    scratch = CandidateScratch(*buffers, empty(ROWS, dtype=INT))
    filters, drawn, found = row_filters(), draw(), _candidate_buffers(count)

    def step(rows: int) -> None:
        parts = (of_rows(part, rows) for part in (filters, drawn, scratch, found))
        candidates_of.agreement_candidates(logits_RN[:rows], ids_N, *parts)

    return step


def _nodes() -> Nodes:
    dtypes = LONG, INT, torch.float64, FLOAT
    return Nodes(*(empty(TREES, num_nodes(WIDTH, DEPTH), dtype=dtype) for dtype in dtypes))


def _frontier() -> Frontier:
    dtypes = LONG, INT, torch.float64, LONG, LONG
    return Frontier(*(empty(TREES, WIDTH, dtype=dtype) for dtype in dtypes))


def _growth() -> Step:
    """All levels of a growth, and the trees that are drafted."""
    found = Candidates(
        *(empty(TREES * WIDTH, WIDTH, dtype=dtype) for dtype in (LONG, FLOAT, FLOAT))
    )
    plans, nodes = Plans(*_integers(TREES, dtypes=(INT, INT))), _nodes()
    frontiers = [_frontier() for _ in range(DEPTH)]
    sizes_S, roots_S = empty(TREES, dtype=INT), empty(TREES, dtype=LONG)
    dtypes = LONG, INT, FLOAT
    drafted = DraftTrees(
        *(empty(TREES, PLACES, dtype=dtype) for dtype in dtypes), empty(TREES, dtype=INT)
    )

    def step(count: int) -> None:
        before = None
        for depth, frontier in enumerate(frontiers, 1):
            after = of_rows(frontier, count)
            grow(found, of_rows(plans, count), of_rows(nodes, count), before, after, depth)
            before = after
        draft_trees(
            of_rows(nodes, count), sizes_S[:count], roots_S[:count], of_rows(drafted, count)
        )

    return step


def _frontier_rows() -> Step:
    """Where the rows of a level lie, of sessions of up to 32,768 tokens."""
    frontier, roots_S = _frontier(), (empty(TREES, dtype=INT), empty(TREES, dtype=LONG))
    roots = Roots(*roots_S, empty(TREES, 512, dtype=INT))
    rows = FrontierRows(*_integers(TREES * WIDTH, dtypes=(INT, INT, LONG, LONG, LONG)))
    return lambda count: frontier_rows(of_rows(frontier, count), of_rows(roots, count), 3, rows)


def _last_states() -> Step:
    h_RH, states_PH, last_NH = empty(256, 7168), empty(1024, 7168), empty(TREES, 7168)
    rows_N, places_N = _integers(TREES, dtypes=(INT, INT))
    return lambda count: keep_last_states(
        h_RH, rows_N[:count], places_N[:count], states_PH, last_NH[:count]
    )


_CANDIDATES = {
    "_scores_kernel": Needs(),
    "_limits_kernel": Needs(waits=True),
    "_candidates_kernel": Needs(),
}
_GROWTH = {"_grow": NARROW, "_draft_trees": NARROW}
SPECS = [
    CompileSpec("geometry of 64 nodes", _tree_geometry, {"_tree_geometry": NARROW}),
    CompileSpec("walk of 64 nodes", _tree_walk, {"_tree_walk": NARROW}),
    CompileSpec("accepted paths", _accepted_rows, {"_place_accepted": NARROW}),
    CompileSpec("8 candidates of 32000", lambda: _candidates(KNOWN, 8), _CANDIDATES, variants=4),
    CompileSpec("rows of a frontier", _frontier_rows, {"_frontier_rows": NARROW}),
    CompileSpec("last states of 7168", _last_states, {"_keep_last_states": Needs()}),
    CompileSpec(
        "trees of 6 levels", _growth, {"_grow": NARROW, "_draft_trees": NARROW}, variants=3
    ),
]
