"""Where the time of a round went, on average.

    draft    the drafter's forwards: rows with real taps, then the tree
    verify   the target's forward and acceptance
    other    waiting in the queues of both
    hops     what is left of the round: wires, serialisation, the gateway itself

The parts come from the services, the round from the gateway's clock. A draft that was begun before
the round's first verdict had arrived counts in full, so that the rest may be less than the hops
took; it is never told as less than nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from protos import gateway_pb2 as pb

PARTS = ("draft", "hops", "verify", "other")


def mean_parts_ms(rounds: Sequence[pb.RoundTimings]) -> dict[str, float]:
    """Return the mean of every part over some rounds, in ms; zeros for none."""
    count = max(len(rounds), 1) * 1000
    draft = sum(one.draft.extend_us + one.draft.grow_us for one in rounds)
    verify = sum(one.verify.forward_us + one.verify.accept_us for one in rounds)
    other = sum(one.draft.queue_us + one.verify.queue_us for one in rounds)
    hops = max(sum(one.round_us for one in rounds) - draft - verify - other, 0)
    parts = dict(zip(PARTS, (draft, hops, verify, other), strict=True))
    return {name: round(microseconds / count, 4) for name, microseconds in parts.items()}
