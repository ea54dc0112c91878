"""One request's rounds as a trace of all three services, for ui.perfetto.dev or chrome://tracing.

Measured: when the gateway had each verdict, on its own clock, and how long every part of a service
took, on the clock of that service. Inferred: where in the round the parts lie. Clocks of machines
need not agree, so the parts are put on the gateway's clock from the end of the round backwards, in
the order in which they must have happened:

    [queue extend grow] hop [queue forward accept] hop | verdict
     draft service           target

What they leave of the round is shared out evenly among the hops between them. The hop of the taps
is not among them: they travel beside the verdict before. A draft that was begun before the gateway
had that verdict may so begin before its round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from protos import gateway_pb2 as pb

TRACKS = ("gateway", "target", "draft service", "hops")


@dataclass(frozen=True)
class Span:
    """Something that takes time, in microseconds on the gateway's clock."""

    track: str
    name: str
    start_us: float
    duration_us: float


def trace(chunks: Sequence[pb.GenerateResponse], about: dict[str, Any]) -> dict[str, Any]:
    """Return an answer as a trace. `about` goes into it as it is."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": track}}
        for pid, track in enumerate(TRACKS, 1)
    ]
    stats = chunks[-1].finish.speculation
    prompt = Span("gateway", "prompt", 0, stats.time_to_first_token_us)
    events.append(_event(prompt, _arguments(chunks[0])))
    for chunk, start_us in _rounds(chunks, prompt.duration_us):
        round_span = Span("gateway", "round", start_us, chunk.timings.round_us)
        events.append(_event(round_span, _arguments(chunk)))
        events += [_event(span, {}) for span in parts_of(chunk.timings, start_us)]
    known = {"simulated": stats.simulated, "accept_length": stats.accept_length}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": about | known}


def _rounds(
    chunks: Sequence[pb.GenerateResponse], first_us: float
) -> Iterator[tuple[pb.GenerateResponse, float]]:
    """Yield the chunks of rounds and when each round began: with the verdict before."""
    rounds = [chunk for chunk in chunks if chunk.HasField("timings")]
    starts = accumulate((chunk.timings.round_us for chunk in rounds), initial=first_us)
    return zip(rounds, starts, strict=False)


def parts_of(timings: pb.RoundTimings, start_us: float) -> list[Span]:
    """Return a round's parts from the last to the first, laid out backwards from its end."""
    draft, verify = timings.draft, timings.verify
    drafting = [
        ("draft service", "grow", draft.grow_us),
        ("draft service", "extend", draft.extend_us),
        ("draft service", "queue", draft.queue_us),
    ]
    verifying = [
        ("target", "accept", verify.accept_us),
        ("target", "forward", verify.forward_us),
        ("target", "queue", verify.queue_us),
    ]
    drafted = any(microseconds for _, _, microseconds in drafting)
    left_us = timings.round_us - sum(part[2] for part in [*drafting, *verifying])
    hop_us = max(left_us, 0) / (3 if drafted else 2)
    parts = [("hops", "target to gateway", hop_us), *verifying]
    parts.append(("hops", "gateway to target", hop_us))
    if drafted:
        parts += [("hops", "draft service to gateway", hop_us), *drafting]
    return _backwards(parts, start_us + timings.round_us)


def _backwards(parts: Sequence[tuple[str, str, float]], end_us: float) -> list[Span]:
    spans = []
    for track, name, microseconds in parts:
        end_us -= microseconds
        spans.append(Span(track, name, end_us, microseconds))
    return spans


def _event(span: Span, arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": span.name,
        "pid": TRACKS.index(span.track) + 1,
        "tid": 1,
        "ts": round(span.start_us, 1),
        "dur": round(span.duration_us, 1),
        "args": arguments,
    }


def _arguments(chunk: pb.GenerateResponse) -> dict[str, Any]:
    return {
        "text": chunk.text,
        "tokens": len(chunk.token_ids),
        "accepted": chunk.accepted_tokens,
        "rows": chunk.timings.verify.rows,
    }
