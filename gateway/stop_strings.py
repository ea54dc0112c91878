"""Find stop strings in text that arrives in chunks.

Knows text only: which token completed a stop string is known to whoever pushes token by token.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class StopScan:
    """What one chunk of text gave."""

    emit: str
    """Text that is final and may go to the client."""
    matched: str | None
    """The stop string that ended the output, None while there is none."""


class StopStrings:
    """Lets text through up to the first stop string, holding back what could be one's beginning.

    The stop string that *completes* first wins, as if the text came one character at a time; so the
    result does not depend on how the text was cut (vLLM's rule, needed with speculation, where one
    round brings many tokens). Of several that complete at the same character the longest wins, so
    that no part of any of them is left in the output; the order of the list never matters.
    """

    def __init__(self, strings: Iterable[str], *, include: bool = False) -> None:
        """`include`: the output ends with the stop string itself instead of before it.

        Raises:
            ValueError: a stop string is empty.
        """
        self._progress = [_Progress(stop) for stop in dict.fromkeys(strings)]
        self._include = include
        self._held = ""
        self._matched = False

    def push(self, text: str) -> StopScan:
        """Take the next text; not to be called again after a match."""
        assert not self._matched, "the output has ended"
        buffer = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            completed = [p.stop for p in self._progress if p.advance(char)]
            if completed:
                return self._stopped(buffer[:end], max(completed, key=len))
        cut = len(buffer) - self._held_len()
        self._held = buffer[cut:]
        return StopScan(emit=buffer[:cut], matched=None)

    def flush(self) -> str:
        """The text still held back, for an output that ends without a stop string."""
        held, self._held = self._held, ""
        return held

    def _stopped(self, text: str, stop: str) -> StopScan:
        self._matched = True
        self._held = ""
        return StopScan(emit=text if self._include else text.removesuffix(stop), matched=stop)

    def _held_len(self) -> int:
        # Output that may include the stop string may include its beginning.
        return 0 if self._include else max((p.matched_len for p in self._progress), default=0)


class _Progress:
    """How much of one stop string the text ends with; a character costs amortised O(1).

    Knuth, Morris, Pratt, "Fast pattern matching in strings" (1977).
    """

    def __init__(self, stop: str) -> None:
        if not stop:
            raise ValueError("a stop string must not be empty")
        self.stop = stop
        self.matched_len = 0
        self._borders = _borders(stop)

    def advance(self, char: str) -> bool:
        """Read one character; True if it completes the stop string."""
        self.matched_len = _extend(self.stop, self._borders, self.matched_len, char)
        return self.matched_len == len(self.stop)


def _extend(pattern: str, borders: list[int], matched_len: int, char: str) -> int:
    while matched_len and pattern[matched_len] != char:
        matched_len = borders[matched_len - 1]
    return matched_len + (pattern[matched_len] == char)


def _borders(pattern: str) -> list[int]:
    """For each prefix: the length of its longest proper prefix that is also its suffix."""
    borders = [0]
    for char in pattern[1:]:
        borders.append(_extend(pattern, borders, borders[-1], char))
    return borders
