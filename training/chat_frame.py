"""What a model's chat template puts around the turns of a conversation, found by rendering it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gateway.chat_template import ChatTemplate
from gateway.tokenizer import Tokenizer

# Private use: no template gives them a meaning.
_USER, _ASSISTANT = "\ue000", "\ue001"


@dataclass(frozen=True)
class ChatFrame:
    """A chat template cut at its turns, in token ids."""

    tokenizer: Tokenizer
    template: ChatTemplate

    @classmethod
    def from_directory(cls, model_dir: Path) -> ChatFrame:
        """Read a model directory. Raises ValueError if it has no tokenizer or no template."""
        template = ChatTemplate.from_directory(model_dir)
        if not template.exists:
            raise ValueError(f"{model_dir} has no chat template, so nobody can talk to it")
        return cls(Tokenizer.from_directory(model_dir), template)

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """The ids that end a turn."""
        return self.tokenizer.eos_token_ids

    def before_user(self, system: str | None) -> list[int]:
        """What comes before the first thing a user says."""
        before, _ = self._render(system, _USER).split(_USER)
        return self.encode(before)

    def before_answer(self) -> list[int]:
        """What comes between something that a user says and the answer."""
        _, after = self._render(None, _USER).split(_USER)
        return self.encode(after)

    def between_turns(self, answer: Sequence[int]) -> list[int]:
        """What comes between an answer and the next thing a user says.

        The end of a turn is left out if the answer has it already.
        """
        _, rest = self._render(None, "", _ASSISTANT, _USER).split(_ASSISTANT)
        between = self.encode(rest.split(_USER)[0])
        ended = bool(answer) and answer[-1] in self.stop_token_ids
        return between[1:] if ended and between[:1] == [answer[-1]] else between

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a piece of a conversation."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _render(self, system: str | None, *turns: str) -> str:
        roles = ("user", "assistant", "user")
        messages = [] if system is None else [{"role": "system", "content": system}]
        messages += [
            {"role": role, "content": text} for role, text in zip(roles, turns, strict=False)
        ]
        return self.template.render(messages)
