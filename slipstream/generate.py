"""`slipstream generate`: prompts in, answers out, in order, as text or one JSON object a prompt."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.client import Client, Completion, Request


@dataclass(frozen=True)
class Prompt:
    """What is asked, as a text or as a conversation so far, and the task it stands for."""

    text: str
    task: str
    messages: tuple[Mapping[str, str], ...] = ()


def read_prompts(text: str | None, path: Path | None) -> list[Prompt]:
    """Return the prompt of `-p`, or those of a JSONL file with {"prompt", "task"} lines.

    In the place of "prompt" a line may have "messages", a list of {"role", "content"}.
    Raises ValueError naming the line that is wrong.
    """
    if (text is None) == (path is None):
        raise ValueError("give either -p TEXT or --prompt-file FILE")
    if text is not None:
        return [Prompt(_encodable("the prompt", text), "")]
    assert path is not None
    if not path.is_file():
        raise ValueError(f"no prompt file {path}")
    # Not splitlines(): JSON strings may hold other line separators than \n.
    lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n")
    prompts = [_parse(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise ValueError(f"{path} has no prompts")
    return prompts


def _parse(path: Path, number: int, line: bytes) -> Prompt:
    where = f"{path}:{number}"
    try:
        entry = json.loads(line.decode())
    except ValueError as error:
        raise ValueError(f"{where} is not JSON: {error}") from None
    if not isinstance(entry, dict):
        raise ValueError(f"{where} must be a JSON object, got {type(entry).__name__}")
    task = str(entry.get("task", ""))
    if isinstance(entry.get("messages"), list) and entry["messages"]:
        messages = tuple(_message(where, message) for message in entry["messages"])
        return Prompt("", task, messages)
    if not isinstance(entry.get("prompt"), str):
        raise ValueError(f'{where} needs a "prompt" string or a list of "messages"')
    return Prompt(_encodable(where, entry["prompt"]), task)


def _message(where: str, message: Any) -> Mapping[str, str]:
    fields = message if isinstance(message, dict) else {}
    role, content = fields.get("role"), fields.get("content")
    if not isinstance(role, str) or not isinstance(content, str):
        raise ValueError(f'{where}: a message needs a "role" and a "content", got {message!r:.80}')
    return {"role": role, "content": _encodable(where, content)}


def _encodable(where: str, text: str) -> str:
    """Return the text if it can be sent. A lone surrogate (a stray byte) cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where} is not valid Unicode at character {error.start}") from None
    return text


@dataclass(frozen=True)
class Options:
    """What all prompts of a run share. `raw` leaves the chat template out."""

    sampling: Mapping[str, Any]
    stopping: Mapping[str, Any]
    speculation: Mapping[str, Any]
    mode: str
    raw: bool = False

    def request(self, prompt: Prompt) -> Request:
        """Return the request for one prompt. Raises ValueError for a raw conversation."""
        if self.raw and prompt.messages:
            raise ValueError("a conversation needs the chat template, which --raw leaves out")
        if self.raw:
            return Request(text=prompt.text, **self._shared())
        if prompt.messages:
            return self.chat_request(prompt.messages)
        return self.chat_request([{"role": "user", "content": prompt.text}])

    def chat_request(self, messages: Sequence[Mapping[str, str]]) -> Request:
        """Return the request that continues a conversation."""
        return Request(chat=messages, **self._shared())

    def _shared(self) -> dict[str, Any]:
        return {
            "sampling": self.sampling,
            "stopping": self.stopping,
            "speculation": self.speculation,
            "mode": self.mode,
        }


def generate(
    client: Client, prompts: list[Prompt], options: Options
) -> Iterator[tuple[Prompt, Completion]]:
    """Answer the prompts one after the other."""
    for prompt in prompts:
        yield prompt, client.complete(options.request(prompt))


def as_json(index: int, prompt: Prompt, completion: Completion) -> str:
    """Return the JSON line of an answer."""
    return json.dumps(
        {
            "prompt_index": index,
            "task": prompt.task,
            "token_ids": list(completion.token_ids),
            "text": completion.text,
            "finish_reason": completion.finish_reason,
            "logprobs": list(completion.logprobs),
            "stats": completion.statistics(),
        },
        ensure_ascii=False,
    )


def trouble(completion: Completion) -> str:
    """Return what a reader of an answer must know of its drafts; empty if all is well."""
    stats = completion.statistics()
    if stats["simulated"]:
        return "simulated acceptance: this is not the model's text"
    missing = stats["drafter_trouble"] and not stats["drafted"]
    return f"no drafts: {stats['drafter_trouble']}" if missing else ""
