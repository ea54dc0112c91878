"""One draft: rows with real taps over guessed ones, then a tree by the standing plan.

It blocks; the server runs it in a thread of its own.

Legend: T rows, X tapped width (layers * hidden).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from draft_service.drafters import Draft, Drafter, Follower
from draft_service.session import DraftSession
from protos import speculation_pb2 as pb
from protos import tensors
from protos.messages import DraftTimings, DraftTree


@dataclass(eq=False)
class Following:
    """A session together with what its drafter keeps of it."""

    session: DraftSession
    drafter: Drafter
    follower: Follower

    @classmethod
    def begin(cls, session: DraftSession, drafter: Drafter) -> Following:
        """Start at the row that the attached session expects next."""
        return cls(session, drafter, drafter.follow(session.next_row))


def follow(
    following: Following, frame: pb.TapFrame, arrived_ns: int, draft: bool
) -> DraftTree | None:
    """Take in a frame; draft if wanted, planned, and if nothing newer is committed.

    Raises ValueError for a frame that does not follow the last one or is malformed.
    """
    started = time.perf_counter_ns()
    session = following.session
    _extend(following, frame)
    extended = time.perf_counter_ns()
    if not (draft and session.plan.steps and session.is_newest(frame.committed_len)):
        return None
    grown = following.follower.draft(session.tokens, session.plan, session.sampling)
    timings = DraftTimings(
        queue_us=(started - arrived_ns) // 1000,
        extend_us=(extended - started) // 1000,
        grow_us=(time.perf_counter_ns() - extended) // 1000,
    )
    return _with_root(session, grown, timings)


def _extend(following: Following, frame: pb.TapFrame) -> None:
    taps_TX = None
    if following.drafter.pairing.tap_layers:
        taps_TX = tensors.from_proto(frame.taps)
        _check_taps(following.drafter, taps_TX, len(frame.tokens))
    following.session.take(frame.base_len, frame.tokens)
    following.follower.extend(frame.base_len, frame.tokens, taps_TX)


def _check_taps(drafter: Drafter, taps_TX: torch.Tensor, rows: int) -> None:
    pairing = drafter.pairing
    shape = [rows, len(pairing.tap_layers) * pairing.hidden_size]
    dtype = tensors.torch_dtype(pairing.tap_dtype)
    if (list(taps_TX.shape), taps_TX.dtype) != (shape, dtype):
        raise ValueError(
            f"taps of shape {list(taps_TX.shape)} and {taps_TX.dtype}, expected {shape} and {dtype}"
        )


def _with_root(session: DraftSession, draft: Draft, timings: DraftTimings) -> DraftTree:
    return DraftTree(
        session.committed_len,
        (session.tokens[-1], *draft.tokens),
        (-1, *draft.parents),
        (0.0, *draft.logprobs) if draft.logprobs else (),
        session.drafter_id,
        timings,
    )
