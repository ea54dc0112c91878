"""Accepted paths get their roots, and their rows the places that were kept for them.

Legend: N trees, T places, R rows.
"""

import torch

from kernels.gpu.accepted_rows import Accepted, place_accepted
from kernels.gpu.tree_walk import Walked
from tests.kernels.gpu.proofs.memory_guard import launch_guarded

T = 5
PATHS = [[], [2, 3], [1, 2, 3, 4], None]
"""The last session has no tree."""
ROOTS, PLACES = [3, 7, 20, 0], [1, 4, 8, 0]


def placed() -> Accepted:
    walked_NT = torch.full((4, T), -1, dtype=torch.int32)
    for one, path in zip(walked_NT, PATHS, strict=True):
        one[: len(path or ())] = torch.tensor(path or [], dtype=torch.int32)
    counts_N = torch.tensor([-1 if path is None else len(path) for path in PATHS]).int()
    walked = Walked(walked_NT, counts_N, torch.zeros(4).long(), torch.zeros(4).long())
    roots_N, places_N = torch.tensor(ROOTS).int(), torch.tensor(PLACES).int()
    unwritten = torch.full((4, T), -7, dtype=torch.int32), torch.full((4,), -7, dtype=torch.int32)
    accepted = Accepted(*unwritten, torch.full((12,), -7, dtype=torch.int32))
    launch_guarded(lambda: place_accepted(walked, roots_N, places_N, accepted), *accepted)
    return accepted


def test_a_path_begins_with_its_root_and_none_is_empty():
    accepted = placed()
    assert accepted.path_lens_N.tolist() == [1, 3, 5, 0]
    for row, path in zip(accepted.paths_NT.tolist(), PATHS, strict=True):
        assert row == [0, *(path or []), *[0] * (T - 1 - len(path or []))]


def test_rows_of_a_path_lie_in_their_places_and_no_other_is_touched():
    kept = placed().kept_rows_R.tolist()
    assert kept[4:6] == [9, 10]
    assert kept[8:12] == [21, 22, 23, 24]
    assert kept[:4] == [-7] * 4
    assert kept[6:8] == [-7] * 2
