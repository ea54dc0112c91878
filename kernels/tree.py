"""The geometry of a tree: depths, paths and the walk of an acceptance. Its one definition.

A tree is its parents: `parents[i] < i`, and -1 for node 0, the root. Everything else is derived.
"""

from __future__ import annotations

from collections.abc import Sequence


def depths(parents: Sequence[int]) -> list[int]:
    """Return every node's distance from the root."""
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent < 0 else found[parent] + 1)
    return found


def paths(parents: Sequence[int]) -> list[tuple[int, ...]]:
    """Return every node's path: the nodes from the root down to and including itself."""
    found: list[tuple[int, ...]] = []
    for node, parent in enumerate(parents):
        found.append((*(found[parent] if parent >= 0 else ()), node))
    return found


def is_chain(parents: Sequence[int]) -> bool:
    """Return whether no node has two children."""
    return all(parent == node - 1 for node, parent in enumerate(parents))


def is_chain_prefix(path: Sequence[int]) -> bool:
    """Return whether a path without its root is that of the first nodes of a chain."""
    return all(node == depth for depth, node in enumerate(path, 1))


def first_path(parents: Sequence[int]) -> list[int]:
    """Return the path of first children from the root down, without the root."""
    path: list[int] = []
    here = 0
    for node in range(1, len(parents)):
        if parents[node] == here:
            path.append(node)
            here = node
    return path


def agreed_path(
    parents: Sequence[int], tokens: Sequence[int], chosen: Sequence[int]
) -> tuple[list[int], int]:
    """Walk from the root while a child carries the token chosen at its parent.

    `chosen[i]` is the token the target itself puts after node i. Returns the accepted nodes without
    the root, and the bonus token, which is what the target chose at the last of them.
    """
    path: list[int] = []
    here = 0
    for node in range(1, len(parents)):
        if parents[node] == here and tokens[node] == chosen[here]:
            path.append(node)
            here = node
    return path, chosen[here]
