"""The geometry of a tree against brute force, and the walk of an acceptance."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import tree

VOCAB = 3


@st.composite
def parent_lists(draw, max_nodes=24):
    """Parents of a random tree: parents[i] < i, and -1 for the root."""
    nodes = draw(st.integers(1, max_nodes))
    return [-1, *(draw(st.integers(0, node - 1)) for node in range(1, nodes))]


@st.composite
def token_trees(draw):
    """A tree of few tokens, so that siblings often carry the same one, and the target's choices."""
    parents = draw(parent_lists())
    tokens, chosen = (
        draw(st.lists(st.integers(0, VOCAB - 1), min_size=len(parents), max_size=len(parents)))
        for _ in range(2)
    )
    return parents, tokens, chosen


def climb(parents, node):
    """Yield a node and its ancestors, the root last."""
    while node >= 0:
        yield node
        node = parents[node]


def children(parents, node):
    return [child for child, parent in enumerate(parents) if parent == node]


@given(parent_lists())
def test_a_path_is_a_climb_turned_round(parents):
    expected = [tuple(reversed(list(climb(parents, node)))) for node in range(len(parents))]
    assert tree.paths(parents) == expected


@given(parent_lists())
def test_a_depth_counts_the_ancestors(parents):
    assert tree.depths(parents) == [len(list(climb(parents, i))) - 1 for i in range(len(parents))]


@given(parent_lists(max_nodes=5))
def test_a_chain_is_a_tree_where_no_node_has_two_children(parents):
    widest = max(len(children(parents, node)) for node in range(len(parents)))
    assert tree.is_chain(parents) == (widest <= 1)


@given(st.integers(1, 30))
def test_the_chain_of_every_length_is_one(nodes):
    parents = range(-1, nodes - 1)
    assert tree.is_chain(parents)
    assert tree.depths(parents) == list(range(nodes))
    assert tree.paths(parents)[-1] == tuple(range(nodes))


def agreed_to(parents, tokens, chosen, node):
    """Whether every token on the way to a node is the one chosen at its parent."""
    return all(tokens[n] == chosen[parents[n]] for n in climb(parents, node) if n)


@given(token_trees())
def test_the_longest_path_that_agrees_is_accepted(drawn):
    parents, _, chosen = drawn
    tokens = [0, *(children(parents, p).index(n) for n, p in enumerate(parents) if p >= 0)]
    agreeing = [n for n in range(len(parents)) if agreed_to(parents, tokens, chosen, n)]
    longest = max(agreeing, key=lambda node: len(tree.paths(parents)[node]))
    expected = list(tree.paths(parents)[longest])[1:]
    assert tree.agreed_path(parents, tokens, chosen) == (expected, chosen[longest])


@given(token_trees())
def test_among_twins_the_first_is_walked(drawn):
    parents, tokens, chosen = drawn
    here, expected = 0, []
    while twins := [n for n in children(parents, here) if tokens[n] == chosen[here]]:
        here = twins[0]
        expected.append(here)
    assert tree.agreed_path(parents, tokens, chosen) == (expected, chosen[here])


def next_token(tokens):
    """What a target says after some tokens: any function of them."""
    return hash(tuple(tokens)) % VOCAB


@given(token_trees())
def test_no_tree_changes_what_a_target_says(drawn):
    """What a round commits begins the text that the target says alone, twins or not."""
    parents, tokens, _ = drawn
    chosen = [next_token(tokens[node] for node in path) for path in tree.paths(parents)]
    path, bonus = tree.agreed_path(parents, tokens, chosen)
    text = tokens[:1]
    while len(text) < len(path) + 2:
        text.append(next_token(text))
    assert [tokens[node] for node in [0, *path]] + [bonus] == text


@pytest.mark.parametrize("agreeing", range(4))
def test_of_a_chain_the_beginning_that_agrees_is_accepted(agreeing):
    chosen = [*range(11, 11 + agreeing), 99, 98, 97]
    path = tree.agreed_path([-1, 0, 1, 2], [10, 11, 12, 13], chosen[:4])
    assert path == (list(range(1, agreeing + 1)), 99)


def test_a_lone_root_accepts_nothing_and_yields_the_bonus():
    assert tree.agreed_path([-1], [5], [7]) == ([], 7)


@given(st.integers(0, 10))
def test_the_nodes_of_a_chain_lie_where_a_path_wants_them(length):
    assert tree.is_chain_prefix(range(1, length + 1))


@given(st.sets(st.integers(1, 12), min_size=1, max_size=6))
def test_a_path_that_leaves_a_node_out_does_not(nodes):
    path = sorted(nodes)
    assert tree.is_chain_prefix(path) == (path == list(range(1, len(path) + 1)))


@given(parent_lists())
def test_the_first_path_is_that_of_first_children(parents):
    """From the root down to a leaf."""
    here = 0
    for node in tree.first_path(parents):
        assert node == children(parents, here)[0]
        here = node
    assert not children(parents, here)
