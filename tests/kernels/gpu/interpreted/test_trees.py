"""Geometry and walks of many trees against kernels/tree.py.

Legend: N trees, T places, R rows.
"""

from random import Random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import tree
from kernels.gpu.tree_geometry import Geometry, Trees, tree_geometry
from kernels.gpu.tree_walk import Walked, tree_walk
from tests.kernels.gpu.proofs.memory_guard import launch_guarded

seeds = st.integers(0, 2**32)


def parents_of(random, nodes):
    """Parents of a random tree; one that likes chains is deep."""
    reach = random.choice([1, 3, 64])
    return [-1, *(random.randrange(max(0, node - reach), node) for node in range(1, nodes))]


def batch_of(seed):
    """Return a random number of places, and trees that fit."""
    random = Random(seed)
    places = random.choice([1, 5, 16, 33, 64])
    return places, [parents_of(random, random.randint(1, places)) for _ in range(3)], random


def trees_of(places, parents, gap=2):
    """Return trees whose rows lie apart, behind them rubbish, and the number of rows."""
    parents_NT = torch.full((len(parents), places), 77, dtype=torch.int32)
    for one, of in zip(parents_NT, parents, strict=True):
        one[: len(of)] = torch.tensor(of)
    sizes_N = torch.tensor([len(of) for of in parents], dtype=torch.int32)
    first_rows_N = ((sizes_N + gap).cumsum(0) - sizes_N).int()
    return Trees(parents_NT, sizes_N, first_rows_N), int((sizes_N + gap).sum()) + gap


def unknown(rows):
    return Geometry(
        torch.full((rows,), -7), torch.full((rows,), -7, dtype=torch.int32), torch.full((rows,), -7)
    )


def rows_of(trees, rows_R):
    """Return the values of each tree's rows, and those of no tree's."""
    spans = [(int(f), int(f + n)) for f, n in zip(trees.first_rows_N, trees.sizes_N, strict=True)]
    taken = {row for start, end in spans for row in range(start, end)}
    rest = [value for row, value in enumerate(rows_R.tolist()) if row not in taken]
    return [rows_R[start:end].tolist() for start, end in spans], rest


@settings(max_examples=15)
@given(seeds)
def test_geometry_is_that_of_the_paths(seed):
    places, parents, _ = batch_of(seed)
    trees, rows = trees_of(places, parents)
    root_positions_N = 2**33 + 10 * torch.arange(len(parents))
    geometry = unknown(rows)
    launch_guarded(lambda: tree_geometry(trees, root_positions_N, geometry), *geometry)
    ancestors, depths, positions = (rows_of(trees, part) for part in geometry)
    for index, of in enumerate(parents):
        masks = [sum(1 << node for node in path) for path in tree.paths(of)]
        assert [mask % 2**64 for mask in ancestors[0][index]] == masks
        assert depths[0][index] == tree.depths(of)
        root = int(root_positions_N[index])
        assert positions[0][index] == [root + depth for depth in tree.depths(of)]
    assert {*ancestors[1], *depths[1], *positions[1]} == {-7}, "nobody else's rows are touched"


def test_the_last_node_of_the_deepest_tree_has_every_bit():
    trees, rows = trees_of(64, [list(range(-1, 63))])
    geometry = unknown(rows)
    tree_geometry(trees, torch.zeros(1, dtype=torch.int64), geometry)
    last = int(trees.first_rows_N[0]) + 63
    assert geometry.ancestors_R[last] == -1
    assert geometry.depths_R[last] == 63


def walk(places, parents, tokens, chosen):
    """Return path, bonus token and new length of every tree."""
    trees, rows = trees_of(places, parents)
    tokens_NT, chosen_R = torch.full((len(parents), places), 1), torch.full((rows,), 1)
    for index, (of, at) in enumerate(zip(tokens, trees.first_rows_N.tolist(), strict=True)):
        tokens_NT[index, : len(of)] = torch.tensor(of)
        chosen_R[at : at + len(of)] = torch.tensor(chosen[index])
    geometry, count = unknown(rows), len(parents)
    tree_geometry(trees, torch.zeros(count, dtype=torch.int64), geometry)
    walked = Walked(
        torch.full((count, places), -7, dtype=torch.int32),
        torch.full((count,), -7, dtype=torch.int32),
        torch.full((count,), -7),
        torch.full((count,), -7),
    )
    committed_lens_N = 100 * torch.arange(count)
    arguments = trees, tokens_NT, chosen_R, geometry, committed_lens_N, walked
    launch_guarded(lambda: tree_walk(*arguments), *walked)
    for path, accepted in zip(walked.paths_NT.tolist(), walked.accepted_N.tolist(), strict=True):
        assert path[accepted:] == [-1] * (places - accepted)
    paths = [
        path[:accepted]
        for path, accepted in zip(walked.paths_NT.tolist(), walked.accepted_N.tolist(), strict=True)
    ]
    grown = (walked.lengths_N - committed_lens_N).tolist()
    assert grown == [len(path) + 1 for path in paths]
    return list(zip(paths, walked.bonus_N.tolist(), strict=True))


@settings(max_examples=25)
@given(seeds, st.sampled_from([1, 2, 3]))
def test_walks_are_those_of_the_reference(seed, vocab):
    """Of few tokens, so that siblings often carry the same one, and paths are long."""
    places, parents, random = batch_of(seed)
    tokens, chosen = (
        [[random.randrange(vocab) for _ in of] for of in parents] for _ in ("tokens", "chosen")
    )
    expected = [tree.agreed_path(*of) for of in zip(parents, tokens, chosen, strict=True)]
    assert walk(places, parents, tokens, chosen) == expected


def test_a_chain_of_64_is_accepted_to_its_end():
    chain = list(range(-1, 63))
    assert walk(64, [chain], [list(range(64))], [list(range(1, 65))]) == [(list(range(1, 64)), 64)]


def test_of_twins_the_elder_is_walked_though_the_younger_leads_further():
    parents, tokens, chosen = [-1, 0, 0, 2], [9, 5, 5, 6], [5, 8, 6, 7]
    assert walk(5, [parents], [tokens], [chosen]) == [([1], 8)]
