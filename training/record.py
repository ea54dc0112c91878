"""Record a target: many conversations at once, each with the taps of all its tokens.

    for each script, many at a time:
        the target makes up the user's turns that are open-ended
        the target answers
        a tap subscriber keeps the hidden states of the whole conversation
        the conversation is added to the recording

Legend: N tokens, X tapped width (layers * hidden).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import structlog
import torch

from protos import target_pb2
from protos.messages import SamplingParams
from protos.pairing import Pairing
from training.chat_frame import ChatFrame
from training.recording import Recording, Source
from training.sample import Facts, Sample
from training.script import Script, Turn
from training.target_client import Decoding, Target

log = structlog.get_logger()

_MOST_TURN_TOKENS = 160
# How users are made up: freely, as what the model likeliest says is always the same; but a small
# model that may say anything speaks as no user does.
_TURN_TEMPERATURE, _TURN_TOP_P = 0.7, 0.95


@dataclass(frozen=True)
class RecordSettings:
    """How much is recorded, and how the target answers."""

    num_tokens: int
    concurrency: int = 48
    max_new_tokens: int = 256
    temperatures: Sequence[float] = (0.0,)
    """Each conversation has one of them, by its seed."""
    top_p: float = 1.0

    def __post_init__(self) -> None:
        """Raises ValueError for what a target would refuse."""
        for temperature in self.temperatures:
            SamplingParams(temperature=temperature, top_p=self.top_p)


class OutOfContextError(Exception):
    """There is no room for another turn."""


@dataclass
class Conversation:
    """What was said so far."""

    tokens: list[int]
    answers: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Recorder:
    """Plays scripts with a target and keeps what it sees."""

    target: Target
    frame: ChatFrame
    pairing: Pairing
    max_context_len: int
    settings: RecordSettings

    async def record(
        self, scripts: Iterator[Script], recording: Recording, told: Callable[[], None]
    ) -> None:
        """Record until there are enough tokens, or no scripts; `told` after each conversation.

        What is finished is on the disk however this ends; what is not when there is enough is
        broken off. Raises AioRpcError, DiskFullError.
        """
        missing = (script for script in scripts if script.sample_id not in recording.sample_ids)
        if recording.num_tokens >= self.settings.num_tokens:
            return
        try:
            async with asyncio.TaskGroup() as group:
                players = [
                    group.create_task(self._play_all(missing, recording, told))
                    for _ in range(self.settings.concurrency)
                ]
                await self._enough(players, recording)
        finally:
            recording.flush()

    async def _enough(self, players: Sequence[asyncio.Task[None]], recording: Recording) -> None:
        """Wait until a player ends; if that is because there is enough, stop the others."""
        await asyncio.wait(players, return_when=asyncio.FIRST_COMPLETED)
        if recording.num_tokens >= self.settings.num_tokens:
            for player in players:
                player.cancel()

    async def _play_all(
        self, scripts: Iterator[Script], recording: Recording, told: Callable[[], None]
    ) -> None:
        for script in scripts:
            try:
                recording.add(await self.play(script))
            except OutOfContextError as error:
                log.warning("script_skipped", sample_id=script.sample_id, reason=str(error))
            told()
            if recording.num_tokens >= self.settings.num_tokens:
                return

    async def play(self, script: Script) -> Sample:
        """Play one script. Raises OutOfContextError if its first turn leaves no room."""
        sampling = self._sampling(script)
        talk = Conversation(self.frame.before_user(script.system))
        for number, turn in enumerate(script.turns[:-1]):
            await self._say(script, number, turn, talk)
            decoding = self._decoding(f"{script.sample_id}.a{number}", talk, sampling)
            answer = await self.target.decode(decoding)
            self._take_in(answer, talk)
            talk.tokens += self.frame.between_turns(answer)
        await self._say(script, len(script.turns) - 1, script.turns[-1], talk)
        decoding = self._decoding(script.sample_id, talk, sampling)
        answer, taps_TX = await self.target.decode_with_taps(decoding, self.pairing)
        self._take_in(answer, talk)
        facts = Facts(
            script.sample_id,
            script.task,
            tuple(talk.answers),
            sampling.temperature,
            sampling.top_p,
            sampling.seed,
        )
        return Sample(facts, torch.tensor(talk.tokens, dtype=torch.int32), taps_TX)

    async def _say(self, script: Script, number: int, turn: Turn, talk: Conversation) -> None:
        """Let the user speak, up to where the answer begins."""
        talk.tokens += self.frame.encode(turn.text)
        if turn.open_ended:
            made_up = SamplingParams(
                temperature=_TURN_TEMPERATURE, top_p=_TURN_TOP_P, seed=script.seed ^ number
            )
            decoding = self._decoding(
                f"{script.sample_id}.u{number}", talk, made_up, _MOST_TURN_TOKENS
            )
            said = await self.target.decode(decoding)
            talk.tokens += [token for token in said if token not in decoding.stop_token_ids]
        talk.tokens += self.frame.before_answer()

    def _take_in(self, answer: Sequence[int], talk: Conversation) -> None:
        begin = len(talk.tokens)
        talk.tokens += answer
        talk.answers.append((begin, len(talk.tokens)))

    def _decoding(
        self, session_id: str, talk: Conversation, sampling: SamplingParams, limit: int = 0
    ) -> Decoding:
        room = self.max_context_len - len(talk.tokens)
        if room < 1:
            raise OutOfContextError(
                f"{len(talk.tokens)} tokens leave no room in a context of {self.max_context_len}"
            )
        longest = min(limit or self.settings.max_new_tokens, room)
        stops = self.frame.stop_token_ids
        return Decoding(session_id, list(talk.tokens), longest, sampling, stops)

    def _sampling(self, script: Script) -> SamplingParams:
        temperature = random.Random(script.seed).choice(self.settings.temperatures)
        return SamplingParams(
            temperature=temperature, top_p=self.settings.top_p, seed=script.seed >> 1
        )


def source_of(info: target_pb2.GetTargetResponse, taps: str) -> Source:
    """Return what a recording says about its target."""
    return Source(
        model_name=info.model_name,
        target_fingerprint=info.pairing.target_fingerprint,
        tokenizer_digest=info.pairing.tokenizer_digest,
        num_layers=info.num_layers,
        hidden_size=info.pairing.hidden_size,
        vocab_size=info.pairing.vocab_size,
        tap_layers=tuple(info.pairing.tap_layers),
        weights=info.weights,
        taps=taps,
    )
