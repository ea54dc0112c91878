"""Which steps a batch takes: one, but for trees that cannot grow together, or too many rows.

A step's sessions are in its table, those whose trees it grows first. Rows come before trees: what
a session drafts from has been taken in by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from draft_service.drafters import Draft, Wanted
from draft_service.drafters.eagle3_gpu.follower import GpuFollower
from draft_service.graphs import MOST_ROWS, Bucket, Growth, bucket_of, most_sessions, width_of


class Extension(NamedTuple):
    """Rows of a session with their taps, [rows, tapped width], from slot `first` on."""

    follower: GpuFollower
    first: int
    tokens: Sequence[int]
    taps_TX: torch.Tensor

    def cut(self, length: int) -> tuple[Extension, Extension]:
        """Return the first rows, and the others."""
        follower, first, tokens, taps_TX = self
        return (
            Extension(follower, first, tokens[:length], taps_TX[:length]),
            Extension(follower, first + length, tokens[length:], taps_TX[length:]),
        )


class Tree(NamedTuple):
    """A tree that is wanted, and what it grows to."""

    wanted: Wanted[GpuFollower]
    growth: Growth

    def counted(self, draft: Draft) -> Draft:
        """Return a draft that says how many rows were run for it: all but those of the last level.

        Places that stayed empty are counted too.
        """
        return replace(draft, num_rows=(self.growth.steps - 1) * self.growth.width)


class Job(NamedTuple):
    """What a step does for one session."""

    follower: GpuFollower
    extension: Extension | None
    tree: Tree | None


class Launch(NamedTuple):
    """The jobs of a step, those with trees first, and what it is large enough for."""

    jobs: tuple[Job, ...]
    bucket: Bucket


def launches_of(extensions: Sequence[Extension], trees: Sequence[Tree]) -> list[Launch]:
    """Return the steps of a batch, in order."""
    *pieces, last = cut_rows(extensions) or [[]]
    first, *groups = group_trees(trees) or [[]]
    joint = _jobs(last, first)
    if len(joint) > most_sessions(width_of(tree.growth for tree in first)):
        steps = [*(_jobs(piece, []) for piece in [*pieces, last]), _jobs([], first)]
    else:
        steps = [*(_jobs(piece, []) for piece in pieces), joint]
    return [_launch(jobs) for jobs in [*steps, *(_jobs([], group) for group in groups)] if jobs]


def _jobs(extensions: Sequence[Extension], trees: Sequence[Tree]) -> tuple[Job, ...]:
    by_follower = {extension.follower: extension for extension in extensions}
    drafted = [
        Job(tree.wanted.follower, by_follower.pop(tree.wanted.follower, None), tree)
        for tree in trees
    ]
    return (*drafted, *(Job(follower, rows, None) for follower, rows in by_follower.items()))


def _launch(jobs: tuple[Job, ...]) -> Launch:
    rows = sum(len(job.extension.tokens) for job in jobs if job.extension)
    growths = [job.tree.growth for job in jobs if job.tree]
    return Launch(jobs, bucket_of(rows, len(jobs), growths))


def cut_rows(extensions: Sequence[Extension]) -> list[list[Extension]]:
    """Return pieces of as many rows and sessions as a step has, every session once in each."""
    pieces: list[list[Extension]] = []
    room = 0
    for extension in extensions:
        rest = extension
        while rest.tokens:
            if not room or len(pieces[-1]) == most_sessions(1):
                pieces.append([])
                room = MOST_ROWS
            some, rest = rest.cut(room)
            pieces[-1].append(some)
            room -= len(some.tokens)
    return pieces


def group_trees(trees: Sequence[Tree]) -> list[list[Tree]]:
    """Return trees that grow together: all of them if they fit into one width."""
    width = width_of(tree.growth for tree in trees)
    if all(tree.growth.fits(width) for tree in trees):
        return _chunks(trees, most_sessions(width))
    widths = {width_of([tree.growth]) for tree in trees}
    return [
        group
        for width in sorted(widths)
        for group in _chunks(
            [tree for tree in trees if width_of([tree.growth]) == width], most_sessions(width)
        )
    ]


def _chunks(trees: Sequence[Tree], size: int) -> list[list[Tree]]:
    return [list(trees[first : first + size]) for first in range(0, len(trees), size)]
