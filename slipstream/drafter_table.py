"""How drafters, the canary and the shadow are shown to people."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from protos.draft_pb2 import (
    DRAFTER_STATE_ALARM,
    DRAFTER_STATE_DRAINING,
    DRAFTER_STATE_LOADING,
    DRAFTER_STATE_READY,
    DRAFTER_STATE_REFUSED,
    DrafterInfo,
    DrafterScore,
    ListDraftersResponse,
    Shadow,
)

_STATES = {
    DRAFTER_STATE_LOADING: "loading",
    DRAFTER_STATE_READY: "ready",
    DRAFTER_STATE_DRAINING: "draining",
    DRAFTER_STATE_REFUSED: "[red]refused[/]",
    DRAFTER_STATE_ALARM: "[red]ALARM[/]",
}
_COLUMNS = ("drafter", "kind", "state", "sessions", "rounds", "accept length", "by position")


def drafter_lines(listed: ListDraftersResponse) -> Iterator[RenderableType]:
    """Yield a table of the drafters, and a line for whatever is to be said beside it."""
    table = Table(*_COLUMNS, box=None, header_style="bold", pad_edge=False)
    for info in listed.drafters:
        is_default = info.drafter_id == listed.default_drafter_id
        table.add_row(info.drafter_id + (" (default)" if is_default else ""), *_cells(info))
    yield table
    for info in listed.drafters:
        if info.state in (DRAFTER_STATE_REFUSED, DRAFTER_STATE_ALARM):
            yield f"{_STATES[info.state]} {info.drafter_id}: {escape(info.refusal)}"
    if listed.HasField("canary"):
        share = f"{listed.canary.share:.1%} of sessions that name no drafter"
        yield f"canary {listed.canary.drafter_id}: {share}"
    if listed.HasField("shadow"):
        yield _shadow_line(listed.shadow)


def _cells(info: DrafterInfo) -> tuple[str, ...]:
    score = info.score
    return (
        info.kind,
        _STATES.get(info.state, ""),
        str(info.sessions),
        str(score.rounds),
        accept_length(score),
        by_position(score),
    )


def accept_length(score: DrafterScore) -> str:
    """Return the accept length and how far it may be off, with 95 % confidence."""
    if not score.rounds:
        return "no rounds"
    reach = (score.accept_length_high - score.accept_length_low) / 2
    return f"{score.accept_length:.2f}" + (f" ± {reach:.2f}" if math.isfinite(reach) else "")


def by_position(score: DrafterScore) -> str:
    """Return how often the draft at each depth was right."""
    return " ".join(f"{count / score.rounds:.2f}" for count in score.accepted_by_position)


def _shadow_line(shadow: Shadow) -> str:
    line = f"shadow {shadow.candidate_id} of {shadow.incumbent_id}: {escape(shadow.outcome)}"
    if not shadow.rounds:
        return line
    line += (
        f"; accept length {shadow.candidate_accept_length:.2f} to "
        f"{shadow.incumbent_accept_length:.2f} on the same {shadow.rounds} rounds"
    )
    if math.isfinite(shadow.gain_low):
        line += f", gain {shadow.gain:+.1%} ({shadow.gain_low:+.1%} to {shadow.gain_high:+.1%})"
    return line + (f", {shadow.dropped_sessions} sessions dropped" * bool(shadow.dropped_sessions))
