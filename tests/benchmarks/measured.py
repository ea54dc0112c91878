"""Answers as if they had been measured."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.interleaved import Taken
from protos import gateway_pb2 as pb
from protos.messages import DraftTimings, VerifyTimings


def round_of(round_us: int, draft: DraftTimings, verify: VerifyTimings) -> pb.RoundTimings:
    return pb.RoundTimings(round_us=round_us, draft=draft.to_proto(), verify=verify.to_proto())


def taken(
    token_ids: Sequence[int],
    seconds: float,
    *,
    accepted_by_position: Sequence[int] = (),
    rounds: Sequence[pb.RoundTimings] = (),
) -> Taken:
    """Return an answer of a chunk a round; without rounds, of one in which all came."""
    stats = pb.SpeculationStats(
        rounds=max(len(rounds), 1),
        drafted=sum(accepted_by_position),
        accepted=sum(accepted_by_position),
        accepted_by_position=accepted_by_position,
        decode_us=round(seconds * 1e6),
        drafter_id="d" if accepted_by_position else "",
    )
    chunks = [pb.GenerateResponse(token_ids=token_ids)]
    chunks += [pb.GenerateResponse(timings=timings) for timings in rounds]
    chunks.append(pb.GenerateResponse(finish=pb.FinishInfo(speculation=stats)))
    return Taken.of(chunks)
