"""Rows of a frontier: nodes lie on their paths behind the real rows, other places on nothing.

Legend: S trees, W places of a frontier, R rows, X pages of a session.
"""

import torch

from kernels.gpu.frontier import Frontier
from kernels.gpu.frontier_rows import FrontierRows, Roots, frontier_rows
from tests.kernels.gpu.proofs.memory_guard import launch_guarded

DEPTH, WIDTH = 3, 3
NODES = torch.tensor([[4, 9, -1], [-1, -1, -1], [7, 8, 6], [-1, -1, -1]], dtype=torch.int32)
REAL_LENS, FIRST_ROWS = (58, 5, 200, 0), (0, 7, 11, 0)


def test_nodes_are_stored_behind_the_real_rows_and_others_nowhere():
    """Slots run over a page's end; the last tree is padding."""
    trees = len(NODES)
    lengths_S = torch.tensor([6 + 53, 7 + 5 + 1, 11 + 200 + 1, 0])
    pages_SX = torch.randperm(20, dtype=torch.int32).view(trees, 5)
    ancestors_SW = torch.randint(1, 2**60, (trees, WIDTH))
    unused = [torch.zeros(trees, WIDTH) for _ in range(3)]
    frontier = Frontier(unused[0], NODES, unused[1], unused[2], ancestors_SW)
    roots = Roots(torch.tensor(REAL_LENS, dtype=torch.int32), lengths_S, pages_SX)
    ints = [torch.full((trees * WIDTH,), -9, dtype=torch.int32) for _ in range(2)]
    rows = FrontierRows(*ints, *(torch.full((trees * WIDTH,), -9) for _ in range(3)))

    launch_guarded(lambda: frontier_rows(frontier, roots, DEPTH, rows), *rows)

    for tree in range(trees):
        for place in range(WIDTH):
            found = [int(part[tree * WIDTH + place]) for part in rows]
            is_node = NODES[tree, place] >= 0
            level, length = DEPTH if is_node else 0, int(lengths_S[tree])
            slot = REAL_LENS[tree] + (DEPTH - 1) * WIDTH + place
            assert found == [
                max(REAL_LENS[tree] - 1 + level, 0),
                max(length - 2 + level, 0),
                ancestors_SW[tree, place] if is_node else 0,
                pages_SX[tree, slot // 64] * 64 + slot % 64 if is_node else -1,
                length + level,
            ]
