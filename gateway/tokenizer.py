"""Text to token ids and back, from the files of a Hugging Face model directory.

Reads `tokenizer.json` through the `tokenizers` library, and the few facts beside it that change
what is sent to the model: which ids end a sequence, and whether a prompt begins with bos. Knows
nothing of chat messages (chat_template.py) and streaming (detokenizer.py).
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import tokenizers


class Tokenizer:
    """One model's tokenizer; immutable, shared by all sessions."""

    digest: str
    """SHA-256 of the bytes of `tokenizer.json`, hex. Two services agree on it before they talk."""
    vocab_size: int
    """Highest token id + 1. The model's own figure may be larger: embeddings are padded."""
    special_tokens: Mapping[str, str]
    """Named tokens of `tokenizer_config.json`: `{"bos_token": "<s>", ...}`."""
    bos_token_id: int | None
    eos_token_ids: frozenset[int]
    """Ids that end a sequence: `generation_config.json`, else `config.json`, and `eos_token`."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        digest: str = "",
        config: Mapping[str, Any] | None = None,
        eos_token_ids: Iterable[int] = (),
    ) -> None:
        """`config` is the content of `tokenizer_config.json`."""
        # Training settings that a tokenizer.json may carry; a prompt is never cut or padded here.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.digest = digest
        self.vocab_size = 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
        self.special_tokens = named_special_tokens(config or {})
        self.bos_token_id = self._named_id("bos_token")
        self.eos_token_ids = frozenset(eos_token_ids) | self._ids_named("eos_token")
        self._special_ids = _special_ids(backend)
        self._bos_prefix = self._missing_bos() if (config or {}).get("add_bos_token") else []

    @classmethod
    def from_directory(cls, path: str | Path) -> Self:
        """Load a model directory; a missing or broken file is a ValueError that names it."""
        directory = Path(path)
        raw = _read_tokenizer_json(directory / "tokenizer.json")
        return cls(
            _parse_tokenizer_json(raw, directory),
            digest=hashlib.sha256(raw).hexdigest(),
            config=read_json(directory / "tokenizer_config.json"),
            eos_token_ids=_declared_eos_ids(directory),
        )

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`; special tokens written out in it are recognised.

        `add_special_tokens` wraps the text as the model expects a fresh prompt: what the
        post-processor in `tokenizer.json` adds, and bos where `add_bos_token` asks for it and the
        post-processor has none (DeepSeek's files). A rendered chat template has them already.

        Raises:
            ValueError: `text` holds a lone surrogate, which no byte sequence stands for.
        """
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except (TypeError, UnicodeError) as error:
            raise ValueError(f"text is not valid Unicode: {error}") from error
        return self._bos_prefix + ids if add_special_tokens else ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of a whole sequence; ids outside the vocabulary (padding) add nothing."""
        return self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)

    def pieces(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> list[str]:
        """The vocabulary entries that `decode` hands to its decoder, e.g. `["Ġhe", "llo"]`."""
        skipped: frozenset[int] = self._special_ids if skip_special_tokens else frozenset()
        entries = (self._backend.id_to_token(i) for i in token_ids if i not in skipped)
        return [entry for entry in entries if entry is not None]

    def token_text(self, token_id: int) -> str:
        """What one token adds in the middle of a text, for log-probability tables.

        Bytes that are not a whole character show as U+FFFD.

        Raises:
            ValueError: `token_id` is not in the vocabulary.
        """
        if not 0 <= token_id < self.vocab_size or self._backend.id_to_token(token_id) is None:
            raise ValueError(f"token id {token_id} is not in the vocabulary of {self.vocab_size}")
        # After itself, because a first token may lose its leading space.
        alone = self.decode([token_id], skip_special_tokens=False)
        return self.decode([token_id, token_id], skip_special_tokens=False)[len(alone) :]

    @property
    def decoder(self) -> dict[str, Any] | None:
        """The decoder of `tokenizer.json` as JSON, in the library's current form."""
        decoder = self._backend.decoder
        return None if decoder is None else json.loads(decoder.__getstate__())

    def _named_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self._backend.token_to_id(token)

    def _ids_named(self, name: str) -> frozenset[int]:
        token_id = self._named_id(name)
        return frozenset() if token_id is None else frozenset([token_id])

    def _missing_bos(self) -> list[int]:
        wrapping = self._backend.encode("", add_special_tokens=True).ids
        if self.bos_token_id is None or self.bos_token_id in wrapping:
            return []
        return [self.bos_token_id]


def named_special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The `*_token` entries of `tokenizer_config.json`: strings or `{"content": string}`."""
    named = {name: value for name, value in config.items() if name.endswith("_token")}
    contents = {k: v.get("content") if isinstance(v, dict) else v for k, v in named.items()}
    return {name: text for name, text in contents.items() if isinstance(text, str)}


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file, {} without the file; anything else is a ValueError."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold a JSON object, not {type(content).__name__}")
    return content


def _read_tokenizer_json(path: Path) -> bytes:
    if not path.is_file():
        raise ValueError(
            f"{path} not found: the gateway needs the model's fast tokenizer; "
            "AutoTokenizer.from_pretrained(...).save_pretrained(...) of transformers writes it"
        )
    return path.read_bytes()


def _parse_tokenizer_json(raw: bytes, directory: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_buffer(raw)
    except Exception as error:  # the library raises no narrower type
        raise ValueError(f"{directory / 'tokenizer.json'} cannot be read: {error}") from error


def _special_ids(backend: tokenizers.Tokenizer) -> frozenset[int]:
    added = backend.get_added_tokens_decoder()
    return frozenset(token_id for token_id, token in added.items() if token.special)


def _declared_eos_ids(directory: Path) -> frozenset[int]:
    for name in ("generation_config.json", "config.json"):
        config = read_json(directory / name)
        # Models that also see images keep the language model's settings in `text_config`.
        for section in (config, config.get("text_config") or {}):
            if section.get("eos_token_id") is not None:
                return _id_set(section["eos_token_id"], directory / name)
    return frozenset()


def _id_set(value: object, path: Path) -> frozenset[int]:
    ids = value if isinstance(value, list) else [value]
    if not all(isinstance(token_id, int) and token_id >= 0 for token_id in ids):
        raise ValueError(f"{path}: eos_token_id must be a token id or a list of them, not {value}")
    return frozenset(ids)
