"""Where each session's part of a step lies: among the rows, the nodes of trees, the kept taps.

Sans-I/O: knows neither tensors nor sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from kernels import tree
from target_service.session import Rows


@dataclass(frozen=True)
class Share:
    """One session's rows, and the places of the first of them, of its nodes and of its taps.

    A path may be as long as its tree is deep: so many taps have a place, whatever is accepted.
    """

    rows: Rows
    first_row: int
    first_node: int
    first_tap: int

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """The parents of the tree's nodes; none if there is no tree."""
        return () if self.rows.root is None else self.rows.tree[1]

    @property
    def num_nodes(self) -> int:
        return _num_nodes(self.rows)

    @property
    def end_row(self) -> int:
        return self.first_row + len(self.rows.tokens)

    @property
    def root_row(self) -> int:
        return self.first_row + self.rows.num_prompt_rows

    @property
    def root_slot(self) -> int:
        """The session's slot of the root, which is its position in the text as well. Without a tree
        what follows the rows.
        """
        return self.rows.prefix_len + self.rows.num_prompt_rows

    @cached_property
    def num_taps(self) -> int:
        """Places for the taps of rows that may be kept."""
        return _num_taps(self.rows)

    @property
    def path_place(self) -> int:
        """Where the taps of the accepted path lie among those that are kept."""
        return self.first_tap + self.rows.num_prompt_rows + 1

    def kept_rows(self) -> list[int]:
        """Return a row for every place of its taps: on those of a path the root stands in."""
        before = range(self.first_row, self.root_row)
        return [*before, *[self.root_row] * (self.num_taps - len(before))]


def shares_of(batch: Sequence[Rows]) -> list[Share]:
    """Lay the parts of all sessions side by side."""
    counts = [(len(rows.tokens), _num_nodes(rows), _num_taps(rows)) for rows in batch]
    firsts = zip(*(accumulate(of, initial=0) for of in zip(*counts, strict=True)), strict=True)
    return [Share(rows, *first) for rows, first in zip(batch, firsts, strict=False)]


def _num_nodes(rows: Rows) -> int:
    return len(rows.tokens) - rows.num_prompt_rows


def _num_taps(rows: Rows) -> int:
    """All rows before the tree, and one of each of its levels."""
    levels = 0 if rows.root is None else max(tree.depths(rows.tree[1])) + 1
    return rows.num_prompt_rows + levels
