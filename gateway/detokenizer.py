"""Token ids to text while they come, never showing text that a later token could change.

The decoder of `tokenizer.json` is a chain of steps over the list of all pieces (vocabulary
entries). Each step is kept here in incremental form, so a token costs its own length and nothing is
decoded twice. Steps and order are those of the `tokenizers` library, whose `decode` is the law.
"""

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from gateway.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """The text of one session. All pushes and one flush together equal `tokenizer.decode(ids)`."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        """Raises ValueError for a decoder whose text cannot be told before the last token."""
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._steps = _decoder_steps(tokenizer.decoder)

    def push(self, token_ids: Sequence[int]) -> str:
        """Take the next tokens; returns the text that became final, possibly none."""
        pieces = self._tokenizer.pieces(token_ids, skip_special_tokens=self._skip_special_tokens)
        for step in self._steps:
            pieces = step.push(pieces)
        return "".join(pieces)

    def flush(self) -> str:
        """The rest, now that no token follows; an unfinished character becomes U+FFFD."""
        pieces: list[str] = []
        for step in self._steps:
            pieces = step.push(pieces) + step.flush()
        return "".join(pieces)


class _Step(Protocol):
    def push(self, pieces: list[str]) -> list[str]: ...
    def flush(self) -> list[str]: ...


class _Join:
    """No decoder at all: the pieces, a space between any two."""

    def __init__(self) -> None:
        self._separator = ""

    def push(self, pieces: list[str]) -> list[str]:
        joined = []
        for piece in pieces:
            joined.append(self._separator + piece)
            self._separator = " "
        return joined

    def flush(self) -> list[str]:
        return []


class _ByteLevel:
    """Byte-level BPE: each character of a piece stands for a byte, the bytes are UTF-8.

    A piece with any other character in it (an added token) stands for itself.
    """

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, pieces: list[str]) -> list[str]:
        return [self._utf8.decode(b"".join(map(_byte_level_bytes, pieces)))]

    def flush(self) -> list[str]:
        return [self._utf8.decode(b"", final=True)]


class _ByteFallback:
    """SentencePiece byte fallback: a run of pieces like `<0xE2>` is UTF-8, or one U+FFFD per byte.

    A single wrong byte spoils its whole run, so a run is held back until another piece ends it.
    """

    _BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")

    def __init__(self) -> None:
        self._run = bytearray()

    def push(self, pieces: list[str]) -> list[str]:
        decoded = []
        for piece in pieces:
            if match := self._BYTE.fullmatch(piece):
                self._run.append(int(match[1], 16))
            else:
                decoded += [*self.flush(), piece]
        return decoded

    def flush(self) -> list[str]:
        run, self._run = bytes(self._run), bytearray()
        try:
            text = run.decode("utf-8")
        except UnicodeDecodeError:
            text = "\ufffd" * len(run)
        return [text] if run else []


class _Metaspace:
    """SentencePiece spaces: the replacement character is a space, and nothing in the first piece
    if encoding puts a space before the text."""

    def __init__(self, replacement: str, first_space: str) -> None:
        self._replacement = replacement
        self._space = first_space

    def push(self, pieces: list[str]) -> list[str]:
        decoded = []
        for piece in pieces:
            decoded.append(piece.replace(self._replacement, self._space))
            self._space = " "
        return decoded

    def flush(self) -> list[str]:
        return []


class _Replace:
    """Every occurrence of a string within a piece becomes another."""

    def __init__(self, pattern: str, content: str) -> None:
        self._pattern = pattern
        self._content = content

    def push(self, pieces: list[str]) -> list[str]:
        return [piece.replace(self._pattern, self._content) for piece in pieces]

    def flush(self) -> list[str]:
        return []


class _StripStart:
    """The text loses up to `count` characters `content` at its beginning."""

    def __init__(self, content: str, count: int) -> None:
        self._content = content
        self._count = count

    def push(self, pieces: list[str]) -> list[str]:
        text = "".join(pieces)
        while text and self._count:
            stripped = text.removeprefix(self._content)
            self._count = self._count - 1 if stripped != text else 0
            text = stripped
        return [text]

    def flush(self) -> list[str]:
        return []


def _decoder_steps(decoder: Mapping[str, Any] | None) -> list[_Step]:
    if decoder is None:
        return [_Join()]
    steps: list[_Step] = []
    fused = False
    for spec in _flattened(decoder):
        if spec["type"] != "Fuse":
            steps.append(_decoder_step(spec, fused))
        fused = fused or spec["type"] in ("Fuse", "ByteLevel")
    return steps


def _flattened(decoder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if decoder["type"] != "Sequence":
        yield decoder
        return
    for part in decoder["decoders"]:
        yield from _flattened(part)


def _decoder_step(spec: Mapping[str, Any], fused: bool) -> _Step:
    """One step; once the pieces are `fused` into one text, chunks of it take their place."""
    match spec:
        case {"type": "ByteLevel"} if not fused:
            return _ByteLevel()
        case {"type": "ByteFallback"} if not fused:
            return _ByteFallback()
        case {"type": "Metaspace", "replacement": replacement, "prepend_scheme": scheme} if (
            not fused
        ):
            return _Metaspace(replacement, first_space=" " if scheme == "never" else "")
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": content} if (
            len(pattern) == 1 or not fused
        ):
            return _Replace(pattern, content)
        case {"type": "Strip", "content": content, "start": count, "stop": 0} if fused:
            return _StripStart(content, count)
    raise ValueError(
        f"the tokenizer's decoder step {dict(spec)} cannot be streamed; known are ByteLevel, "
        "ByteFallback, Metaspace, Fuse, Replace of a string, and Strip at the start after Fuse"
    )


def _byte_level_bytes(piece: str) -> bytes:
    try:
        return bytes([_BYTE_OF_CHARACTER[character] for character in piece])
    except KeyError:
        return piece.encode()


def _byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 bytes are themselves, the others follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    shifted = {chr(0x100 + index): byte for index, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | shifted


_BYTE_OF_CHARACTER = _byte_of_character()
