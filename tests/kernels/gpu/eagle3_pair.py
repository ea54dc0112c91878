"""One tiny checkpoint as two drafters, on the CPU and by kernels for GPUs, and sessions of both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from draft_service.drafters import Draft
from draft_service.drafters.eagle3_gpu.drafter import Eagle3GpuDrafter
from kernels.elementwise import rms_norm
from kernels.normed_linear import NormedLinear, normed_linear
from protos.messages import Plan, SamplingParams
from tests.draft_service.drafters.followed import Followed
from tests.draft_service.drafters.played_session import (
    HIDDEN,
    LAYERS,
    VOCAB,
    PlayedSession,
    load,
    target_side,
)
from tests.tiny_models import write_tiny_eagle3

CPU = torch.device("cpu")
PAGES = 12
# Attention rounds its weights to bfloat16 on a GPU, and nowhere else: some roundings of hidden
# states, which log-probabilities of up to 8 are made of.
ROUNDINGS = 8 * 2**-8


def write_drafter(path: Path, **config: Any) -> Path:
    """Write a tiny checkpoint in bfloat16, with heads that are wide enough for tensor cores."""
    usual = {"hidden": HIDDEN, "vocab": VOCAB, "target_layers": LAYERS, "seed": 4, "head_dim": 16}
    return write_tiny_eagle3(path, dtype=torch.bfloat16, **(usual | config))


@contextmanager
def unrounded_logits() -> Iterator[None]:
    """Let the reference keep the float32 of its logits, as kernels for GPUs and native ones do."""

    def unrounded(x_RK: torch.Tensor, layer: NormedLinear) -> torch.Tensor:
        normed_RK = x_RK if layer.norm_K is None else rms_norm(x_RK, layer.norm_K, layer.eps)
        linear = layer.linear
        bias_N = None if linear.bias_N is None else linear.bias_N.float()
        return F.linear(normed_RK.float(), linear.weight_NK.float(), bias_N)

    normed_linear.register("cpu", torch.bfloat16, unrounded)
    yield
    normed_linear.unregister("cpu", torch.bfloat16)


class Drafts(NamedTuple):
    """A session's drafts of one round."""

    by_cpu: Draft
    by_gpu: Draft

    def check(self) -> None:
        """They are the same tree."""
        cpu, gpu = self
        assert (gpu.tokens, gpu.parents) == (cpu.tokens, cpu.parents)
        difference = torch.tensor(gpu.logprobs) - torch.tensor(cpu.logprobs)
        assert difference.abs().max() < ROUNDINGS


@dataclass
class Pair:
    """The two drafters."""

    by_cpu: Any
    by_gpu: Any

    @classmethod
    def load(cls, path: Path, device: torch.device = CPU, **facts: int) -> Pair:
        """Load both for a target of which these facts are unusual."""
        side = target_side(**facts)
        gpu = Eagle3GpuDrafter.load("gpu", path, side, device, kv_tokens=64 * PAGES)
        return cls(load(path, **facts), gpu)

    @property
    def both(self) -> tuple[Any, Any]:
        return self.by_cpu, self.by_gpu

    def guest(self, sampling: SamplingParams, first_row: int = 0, **played: int) -> Guest:
        """Return a session that both begin to follow."""
        followed = [Followed.by(drafter, first_row) for drafter in self.both]
        return Guest(PlayedSession(**played), sampling, followed, first_row)

    def extend(self, pieces: Iterable[tuple[Guest, int]]) -> None:
        """Take in so many rows of each session, or as many as there are."""
        cut = [(guest, guest.cut(count)) for guest, count in pieces]
        for side, drafter in enumerate(self.both):
            drafter.extend([guest.followed[side].rows(*rows) for guest, rows in cut])

    def draft(self, wanted: Sequence[tuple[Guest, Plan]]) -> list[Drafts]:
        """Draft for sessions, all of whose rows are taken in."""
        drafts = [
            drafter.draft(
                [
                    guest.followed[side].wanted(guest.session.tokens, plan, guest.sampling)
                    for guest, plan in wanted
                ]
            )
            for side, drafter in enumerate(self.both)
        ]
        return [Drafts(*of_both) for of_both in zip(*drafts, strict=True)]

    def round(self, wanted: Sequence[tuple[Guest, Plan]]) -> list[Drafts]:
        """Take in all rows of sessions, and draft for them."""
        self.extend((guest, guest.rows_left) for guest, _ in wanted if guest.rows_left)
        return self.draft(wanted)


@dataclass(eq=False)
class Guest:
    """A session that both drafters follow."""

    session: PlayedSession
    sampling: SamplingParams
    followed: list[Followed]
    next_row: int = field(default=0)

    @property
    def rows_left(self) -> int:
        return len(self.session.tokens) - 1 - self.next_row

    def cut(self, count: int) -> tuple[int, list[int], torch.Tensor]:
        """Return where the next rows begin, their tokens and their taps."""
        first, end = self.next_row, self.next_row + min(count, self.rows_left)
        self.next_row = end
        return first, self.session.tokens[first + 1 : end + 1], self.session.taps()[first:end]

    def commit(self, drafts: Drafts) -> None:
        """Accept some of what was drafted first, and add a bonus token."""
        self.session.commit(list(drafts.by_cpu.tokens[:2]))

    def leave(self) -> None:
        for one in self.followed:
            one.follower.close()
