"""How many drafts the target accepted, over many answers."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.interleaved import Taken


def shares_by_position(taken: Sequence[Taken]) -> list[float]:
    """Return the share of rounds in which the draft at each depth was accepted."""
    stats = [one.completion.finish.speculation for one in taken]
    rounds = max(sum(one.rounds for one in stats), 1)
    counts = [one.accepted_by_position for one in stats]
    deepest = max(map(len, counts), default=0)
    return [
        sum(count[depth] for count in counts if depth < len(count)) / rounds
        for depth in range(deepest)
    ]


def accept_length(taken: Sequence[Taken]) -> float:
    """Return 1 + accepted drafts / rounds: the bonus token counts."""
    return round(1 + sum(shares_by_position(taken)), 4)
