"""What followed the last few tokens the last time they occurred in a text. No tensors, no weights.

Texts that copy (edits, summaries, code, loops) go on as they did before. (Saxena, "Prompt lookup
decoding", 2023.)
"""

from __future__ import annotations

from collections.abc import Sequence

_LENGTHS = (4, 3, 2)


class PromptLookup:
    """Where each n-gram of one growing text was last followed by something."""

    def __init__(self) -> None:
        self._next_position: dict[tuple[int, ...], int] = {}
        self._indexed = 1

    def copied(self, tokens: Sequence[int], count: int) -> tuple[int, ...]:
        """Return `count` tokens from the last place where the longest known n-gram at the end was.

        `tokens` are those of the last call and more. Nothing if no n-gram at the end is known.
        """
        self._index(tokens)
        start = self._lookup(tokens)
        if start is None:
            return ()
        # Copying may run into its own copy: that is how a loop goes on.
        copied = list(tokens)
        for offset in range(count):
            copied.append(copied[start + offset])
        return tuple(copied[len(tokens) :])

    def _index(self, tokens: Sequence[int]) -> None:
        """Note what follows each n-gram, but for those at the very end."""
        for position in range(self._indexed, len(tokens)):
            for length in _LENGTHS:
                if length <= position:
                    self._next_position[tuple(tokens[position - length : position])] = position
        self._indexed = max(self._indexed, len(tokens))

    def _lookup(self, tokens: Sequence[int]) -> int | None:
        for length in _LENGTHS:
            found = self._next_position.get(tuple(tokens[-length:]))
            if found is not None:
                return found
        return None
