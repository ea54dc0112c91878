"""Which of a session's rows are kept after a step, and where they come to lie.

Sans-I/O: knows neither tensors nor sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernels import tree
from target_service.kv_memory import slots_of
from target_service.session import Rows


@dataclass(frozen=True)
class KeptRows:
    """All rows of a session before the root, the root, and those of the accepted path.

    `first` is the place of the session's first row among the step's; nodes of the path count from
    the root.
    """

    rows: Rows
    first: int
    path: Sequence[int]

    @property
    def num_before_path(self) -> int:
        return self.rows.num_prompt_rows + (self.rows.root is not None)

    @property
    def num_rows(self) -> int:
        return self.num_before_path + len(self.path)

    def places(self) -> list[int]:
        """Return their places among the step's rows."""
        root = self.first + self.rows.num_prompt_rows
        start = range(self.first, self.first + self.num_before_path)
        return [*start, *(root + node for node in self.path)]

    def slots(self) -> list[int]:
        """Return where they lie among the slots of all pages, once the path is compacted."""
        start = self.rows.prefix_len
        return slots_of(self.rows.pages, range(start, start + self.num_rows))

    def moves(self) -> list[tuple[int, int]]:
        """Return from where to where the path's slots are moved. A chain's lie there already."""
        if tree.is_chain_prefix(self.path):
            return []
        root = self.rows.prefix_len + self.rows.num_prompt_rows
        source = slots_of(self.rows.pages, [root + node for node in self.path])
        target = slots_of(self.rows.pages, range(root + 1, root + 1 + len(self.path)))
        return list(zip(source, target, strict=True))
