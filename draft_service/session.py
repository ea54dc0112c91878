"""The draft service's half of a session: the committed tokens, and which row of taps comes next.

Sans-I/O: knows neither tensors nor sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from protos.messages import Plan, SamplingParams, check_id


@dataclass(eq=False)
class DraftSession:
    """One session that a drafter follows."""

    session_id: str
    drafter_id: str
    tokens: list[int]
    sampling: SamplingParams
    plan: Plan
    joins_late: bool = False
    """Whether the session ran before we followed it."""
    next_row: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        check_id("session_id", self.session_id)
        if not self.tokens:
            raise ValueError("token_ids needs at least one token, got none")

    @property
    def committed_len(self) -> int:
        return len(self.tokens)

    def attach(self, missed: Sequence[int], first_row: int) -> None:
        """The tap stream begins: these tokens came before it, and its first row is `first_row`.

        Raises ValueError if that leaves a gap behind the known tokens.
        """
        self.tokens.extend(missed)
        if first_row >= self.committed_len:
            raise ValueError(
                f"the taps begin at row {first_row}, but only {self.committed_len} tokens are known"
            )
        self.next_row = first_row

    def take(self, base_len: int, tokens: Sequence[int]) -> None:
        """Take in the tokens of a frame, known ones and new ones.

        Raises ValueError for a frame that leaves a gap or repeats rows: the stream is broken.
        """
        if base_len != self.next_row:
            raise ValueError(f"a frame begins at row {base_len}, expected {self.next_row}")
        self.tokens[base_len + 1 :] = tokens
        self.next_row += len(tokens)

    def is_newest(self, committed_len: int) -> bool:
        """Whether all rows of a session with so many committed tokens were taken in."""
        return self.next_row + 1 == committed_len
