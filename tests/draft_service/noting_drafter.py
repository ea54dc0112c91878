"""A drafter that notes what it is given, and the frames of sessions that it may follow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from draft_service.drafters import Draft, Rows, Wanted
from draft_service.following import Following
from draft_service.kv_pool import KvPool, KvUsage, SessionPages
from draft_service.outbox import Outbox
from draft_service.session import DraftSession
from protos import speculation_pb2 as pb
from protos import tensors
from protos.messages import Plan, SamplingParams
from protos.pairing import Pairing

HIDDEN, LAYERS, WIDTH, VOCAB, CONTEXT = 4, (2, 5), 8, 50, 2000
PROMPT = [7, 8, 9]
GUESSES = Draft((1, 2, 3), (0, 0, 1), (-0.5, -0.75, -1.0), num_rows=2)


class PagesOnly:
    """A follower that holds pages and does nothing with them."""

    def __init__(self, pool: KvPool, first_row: int) -> None:
        self.first_row = first_row
        self.num_rows = 0
        self._pages = SessionPages(pool, first_row)

    def reserve(self, num_rows: int) -> None:
        self._pages.reserve(self.num_rows + num_rows)

    def close(self) -> None:
        self._pages.keep(0)


class NotingDrafter:
    """Always guesses the same. It has room for so many pages; a token 49 breaks it."""

    drafter_id = "noting"
    kind = "noting"
    blocking = True
    pairing = Pairing(HIDDEN, VOCAB, LAYERS)
    max_context_len = CONTEXT
    target_ids = None

    def __init__(self, draft: Draft = GUESSES, num_pages: int = 100) -> None:
        self.given = draft
        self.pool = KvPool(num_pages)
        self.extended: list[list[Rows[PagesOnly]]] = []
        self.drafted: list[list[Wanted[PagesOnly]]] = []

    @property
    def kv_usage(self) -> KvUsage:
        return self.pool.usage

    def follow(self, first_row: int) -> PagesOnly:
        return PagesOnly(self.pool, first_row)

    def extend(self, batch: Sequence[Rows[PagesOnly]]) -> None:
        self.extended.append(list(batch))
        for rows in batch:
            if 49 in rows.tokens:
                raise RuntimeError("it broke")
            rows.follower.num_rows += len(rows.tokens)

    def draft(self, batch: Sequence[Wanted[PagesOnly]]) -> list[Draft]:
        self.drafted.append(list(batch))
        return [self.given] * len(batch)


def taps_of(rows: int, width: int = WIDTH, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.arange(rows * width, dtype=dtype).reshape(rows, width)


def frame(
    base_len: int, tokens: Sequence[int], committed_len: int = 0, taps: torch.Tensor | None = None
) -> pb.TapFrame:
    """Return a frame; unless it says otherwise its tokens are all that is committed."""
    return pb.TapFrame(
        base_len=base_len,
        tokens=tokens,
        committed_len=committed_len or base_len + len(tokens) + 1,
        taps=tensors.to_proto(taps_of(len(tokens)) if taps is None else taps),
    )


def following(drafter: Any, first_row: int = 0, plan: Plan = Plan(steps=3)) -> Following:  # noqa: B008
    """Return an attached session that the drafter follows."""
    session = DraftSession("s", "eagle", list(PROMPT), SamplingParams(seed=3), plan)
    session.attach([], first_row)
    return Following.begin(session, drafter, Outbox())
