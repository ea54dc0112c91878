"""What followed the last few tokens the last time they occurred in a text. No tensors, no weights.

Texts that copy (edits, summaries, code, loops) go on as they did before. (Saxena, "Prompt lookup
decoding", 2023.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

_LENGTHS = (4, 3, 2)
# Longer than this the agreement before a copy tells nothing more.
_LONGEST = 16


class Copied(NamedTuple):
    """What may follow a text, and how likely each token of it is, should those before it be right.

    The chances are rough: who uses them learns how reliable they are.
    """

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()


class PromptLookup:
    """Where each n-gram of one growing text was last followed by something."""

    def __init__(self) -> None:
        self._next_position: dict[tuple[int, ...], int] = {}
        self._indexed = 1

    def copied(self, tokens: Sequence[int], count: int) -> Copied:
        """Return `count` tokens from the last place where the longest known n-gram at the end was.

        `tokens` are those of the last call and more. Nothing if no n-gram at the end is known.
        """
        self._index(tokens)
        start = self._lookup(tokens)
        if start is None:
            return Copied()
        # Copying may run into its own copy: that is how a loop goes on.
        text = list(tokens)
        for offset in range(count):
            text.append(text[start + offset])
        agreed = _agreement(tokens, start)
        chances = (_chance(agreed + offset) for offset in range(count))
        return Copied(tuple(text[len(tokens) :]), tuple(map(math.log, chances)))

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


def _agreement(tokens: Sequence[int], start: int) -> int:
    """Return how many tokens before `start` are those at the end of the text."""
    length = 0
    while length < min(start, _LONGEST) and tokens[start - 1 - length] == tokens[-1 - length]:
        length += 1
    return length


def _chance(agreed: int) -> float:
    """Return how likely the text goes on as it did: the doubt is halved with every two tokens."""
    return 1 - 0.5 ** (min(agreed, _LONGEST) / 2)
