"""A session without a target: random tokens, a random residual stream, random verdicts."""

import random
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file

from draft_service.drafters.eagle3 import Eagle3Drafter
from draft_service.drafters.target_side import TargetSide
from protos import speculation_pb2 as pb
from protos.messages import Plan, SamplingParams
from tests.draft_service.drafters.followed import Followed
from tests.draft_service.drafters.plain_eagle3 import PlainEagle3

HIDDEN, VOCAB, LAYERS, TAP_LAYERS = 32, 97, 12, (2, 6, 9)

GREEDY = SamplingParams(temperature=0)
SAMPLED = SamplingParams(temperature=0.8, seed=2**40 + 7)


def target_side(**facts) -> TargetSide:
    usual = {
        "num_layers": LAYERS,
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "max_context_len": 1024,
        "tap_dtype": pb.DTYPE_F32,
    }
    return TargetSide(**(usual | facts))


def load(path: Path, drafter_id: str = "tiny", **facts) -> Eagle3Drafter:
    """Load a drafter for a target of which these facts are unusual."""
    return Eagle3Drafter.load(drafter_id, path, target_side(**facts), kv_tokens=65536)


def write_target(path: Path, *, tied: bool = False, prefix: str = "") -> dict[str, torch.Tensor]:
    """Write a target's embedding and head; return them."""
    generator = torch.Generator().manual_seed(5)
    shared = {name: torch.randn(VOCAB, HIDDEN, generator=generator) for name in ("embed", "head")}
    tensors = {f"{prefix}model.embed_tokens.weight": shared["embed"]}
    if tied:
        shared["head"] = shared["embed"]
    else:
        tensors[f"{prefix}lm_head.weight"] = shared["head"]
    path.mkdir()
    (path / "config.json").write_text('{"tie_word_embeddings": %s}' % ("true" if tied else "false"))
    save_file(tensors, path / "model-00001-of-00001.safetensors")
    return shared


@dataclass
class PlayedSession:
    """Committed tokens, and the residual stream at the input of every layer, [rows, L + 1, H]."""

    seed: int = 0
    prompt_len: int = 21
    hidden: int = HIDDEN
    tokens: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self._generator = torch.Generator().manual_seed(self.seed)
        self.tokens = [self.random.randrange(VOCAB) for _ in range(self.prompt_len)]
        self._stream = self._run(self.prompt_len - 1)

    def _run(self, rows: int) -> torch.Tensor:
        steps = torch.randn(rows, LAYERS + 1, self.hidden, generator=self._generator)
        return steps.cumsum(1)

    def taps(self, shift: int = 0) -> torch.Tensor:
        """Return the taps of all rows; `shift` reads that many layers too high."""
        return self._stream[:, [layer + shift for layer in TAP_LAYERS]].flatten(1)

    def spoil(self, value: float) -> None:
        """Let the whole residual stream be this value."""
        self._stream.fill_(value)

    def commit(self, drafts: list[int]) -> int:
        """Accept some of the drafts, add a bonus token; return how many were accepted."""
        accepted = self.random.randint(0, len(drafts))
        self.tokens += [*drafts[:accepted], self.random.randrange(VOCAB)]
        self._stream = torch.cat([self._stream, self._run(accepted + 1)])
        return accepted


def play(
    drafter: Eagle3Drafter,
    session: PlayedSession,
    sampling: SamplingParams,
    *,
    first_row: int = 0,
    rounds: int = 6,
):
    """Yield the draft of every round; the session goes on after it was looked at."""
    followed, next_row = Followed.by(drafter, first_row), first_row
    for _ in range(rounds):
        followed.extend(next_row, session.tokens[next_row + 1 :], session.taps()[next_row:])
        next_row = len(session.tokens) - 1
        plan = Plan(steps=session.random.randint(1, 6), draft_tokens=6)
        draft = followed.draft(session.tokens, plan, sampling)
        yield draft
        session.commit(list(draft.tokens))


@dataclass
class StalePlain:
    """The plain drafter with the classic mistake: rows of accepted guesses stay as guessed."""

    plain: PlainEagle3
    h: torch.Tensor | None = None
    real_rows: int = 0

    def chain(self, session: PlayedSession, num_drafts: int) -> list[int]:
        fused = self.plain.fuse(session.taps())
        kept = 0 if self.h is None else min(len(self.h), len(fused) - 1)
        h = fused if self.h is None else torch.cat([self.h[:kept], fused[kept:]])
        drafts, _, self.h = self.plain.chain(session.tokens, h, 0, num_drafts, GREEDY)
        # The last row was chosen from, never run.
        self.h = self.h[:-1]
        return drafts
