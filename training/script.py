"""What a conversation to be recorded consists of: the user's turns, given or made up by the target.

The target makes up a turn if it is given only the turn's first words: an instruct model goes on as
its users do (Xu et al., "Magpie", arXiv 2406.08464). So recording needs no data set, and what is
recorded looks like what the target is asked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROLES = {"human": "user", "gpt": "assistant"}


@dataclass(frozen=True)
class Turn:
    """What the user says; if `open_ended`, only how the user begins."""

    text: str
    open_ended: bool = False


@dataclass(frozen=True)
class Script:
    """A conversation without its answers."""

    sample_id: str
    task: str
    turns: tuple[Turn, ...]
    system: str | None = None

    def __post_init__(self) -> None:
        if not self.turns:
            raise ValueError(f"script {self.sample_id} has no user turns")

    @property
    def seed(self) -> int:
        """A seed of its own, the same in every recording."""
        return int.from_bytes(hashlib.sha256(self.sample_id.encode()).digest()[:8], "big")


def read_scripts(path: Path) -> Iterator[Script]:
    """Yield the scripts of a JSONL file, one a line.

    A line holds {"prompt": text}, {"messages": [{"role", "content"}]} as OpenAI has it or
    {"conversations": [{"from", "value"}]} as ShareGPT has it, and perhaps a "task". Answers are
    left out: the target gives its own. Raises ValueError naming the line that is wrong.
    """
    if not path.is_file():
        raise ValueError(f"{path} is no prompt file")
    lines = path.read_bytes().split(b"\n")
    if not any(line.strip() for line in lines):
        raise ValueError(f"{path} has no prompts")
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _parse(f"{path}:{number}", line)


def _parse(where: str, line: bytes) -> Script:
    try:
        entry = json.loads(line.decode())
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    if not isinstance(entry, dict):
        raise ValueError(f"{where} must be a JSON object, got {type(entry).__name__}")
    messages = _messages(where, entry)
    turns = tuple(Turn(text) for role, text in messages if role == "user")
    if not any(turn.text.strip() for turn in turns):
        raise ValueError(f"{where} has nothing that a user says")
    _check_encodable(where, messages)
    system = next((text for role, text in messages if role == "system"), None)
    digest = hashlib.sha256(json.dumps(messages).encode()).hexdigest()
    return Script(digest[:16], str(entry.get("task", "")), turns, system)


def _check_encodable(where: str, messages: Sequence[tuple[str, str]]) -> None:
    """Refuse what cannot be sent: lone surrogates, which stray bytes become."""
    for _, text in messages:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{where} is not valid Unicode at character {error.start}") from None


def _messages(where: str, entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    if isinstance(entry.get("prompt"), str):
        return [("user", entry["prompt"])]
    for key, role_key, text_key in (
        ("messages", "role", "content"),
        ("conversations", "from", "value"),
    ):
        if isinstance(entry.get(key), list):
            return [_message(where, message, role_key, text_key) for message in entry[key]]
    raise ValueError(f'{where} needs a "prompt", "messages" or "conversations"')


def _message(where: str, message: Any, role_key: str, text_key: str) -> tuple[str, str]:
    if not isinstance(message, dict) or not isinstance(message.get(text_key), str):
        raise ValueError(f"{where}: every message needs a {text_key!r} string, got {message!r:.80}")
    role = str(message.get(role_key, ""))
    return _ROLES.get(role, role), message[text_key]
