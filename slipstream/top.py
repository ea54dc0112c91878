"""`slipstream top`: what both services are doing, live.

Numbers that only grow are shown as they grow, from one look to the next; how good the drafters are,
over all that they drafted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import grpc
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table

from protos.draft_pb2 import ListDraftersResponse
from protos.target_pb2 import GetTargetResponse, TargetLoad
from slipstream.drafter_table import drafter_lines
from slipstream.probe import get_target, list_drafters

_BAR_WIDTH = 30


@dataclass(frozen=True)
class Look:
    """What the services said at one moment; None for one that did not answer."""

    at: float
    target: GetTargetResponse | None
    draft: ListDraftersResponse | None

    @classmethod
    def now(cls, target: str, draft: str) -> Look:
        """Ask both services."""
        return cls(time.monotonic(), _target(target), _draft(draft))


def _target(address: str) -> GetTargetResponse | None:
    try:
        return get_target(address)
    except grpc.RpcError:
        return None


def _draft(address: str) -> ListDraftersResponse | None:
    try:
        return list_drafters(address)
    except grpc.RpcError:
        return None


def looks(target: str, draft: str, interval_s: float) -> Iterator[tuple[Look, Look]]:
    """Yield two looks at the services, one after the other, again and again."""
    before = Look.now(target, draft)
    while True:
        time.sleep(interval_s)
        now = Look.now(target, draft)
        yield before, now
        before = now


def view(before: Look, now: Look) -> RenderableType:
    """Return what there is to see."""
    seconds = now.at - before.at
    return Group(_target_panel(before, now, seconds), _draft_panel(before, now, seconds))


def _target_panel(before: Look, now: Look, seconds: float) -> Panel:
    if now.target is None:
        return Panel("does not answer", title="target")
    load = now.target.load
    then = before.target.load if before.target else load
    rows = {
        "sessions": f"{load.sessions}, of which {load.queued} wait for a step",
        "KV cache": _bar(load.kv_tokens_reserved, load.kv_tokens_total)
        + f", {load.kv_tokens_cached} more remembered",
        "tokens/s": f"{(load.committed_tokens - then.committed_tokens) / seconds:.1f}",
        "rows a step": _rows_a_step(then, load),
        "accept length": _accept_length(then, load),
        "prefix hits": _share(load.cached_prompt_tokens, load.prompt_tokens) + " of all prompts",
        "preemptions": str(load.preemptions),
        "tap subscribers": str(load.tap_subscriptions),
    }
    name = f"target: {now.target.model_name}, {now.target.weights}, {now.target.kernels}"
    return Panel(_table(rows), title=name)


def _draft_panel(before: Look, now: Look, seconds: float) -> Panel:
    if now.draft is None:
        return Panel("does not answer", title="draft service")
    load, then = now.draft.load, (before.draft or now.draft).load
    rows = {
        "sessions": f"{load.sessions}, {load.tap_subscriptions} tap streams",
        "KV cache": _bar(load.kv_tokens_reserved, load.kv_tokens_total),
        "batches/s": f"{(load.batches - then.batches) / seconds:.1f}",
        "rows/s": f"{(load.extended_rows - then.extended_rows) / seconds:.1f} real, "
        f"{(load.grown_rows - then.grown_rows) / seconds:.1f} guessed",
        "out of memory": str(load.dropped_for_memory),
    }
    drafters = drafter_lines(now.draft) if now.draft.drafters else ()
    return Panel(Group(_table(rows), *drafters), title="draft service")


def _table(rows: dict[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        table.add_row(f"[bold]{name}[/]", value)
    return table


def _rows_a_step(then: TargetLoad, now: TargetLoad) -> str:
    steps = now.steps - then.steps
    if not steps:
        return "no steps"
    prompt, root, draft = (
        (getattr(now, name) - getattr(then, name)) / steps
        for name in ("prompt_rows", "root_rows", "draft_rows")
    )
    return f"{prompt:.1f} of prompts, {root:.1f} roots, {draft:.1f} drafts"


def _accept_length(then: TargetLoad, now: TargetLoad) -> str:
    """Return 1 + accepted drafts a round, and how often each position was accepted."""
    before = [*then.accepted_by_position, *[0] * len(now.accepted_by_position)]
    accepted = [new - old for new, old in zip(now.accepted_by_position, before, strict=False)]
    rounds = now.committed_tokens - then.committed_tokens - sum(accepted)
    if not rounds:
        return "no rounds"
    by_position = " ".join(f"{count / rounds:.2f}" for count in accepted if count)
    return f"{1 + sum(accepted) / rounds:.2f}  {by_position}".rstrip()


def _bar(used: int, total: int) -> str:
    filled = round(_BAR_WIDTH * used / total) if total else 0
    return "█" * filled + "░" * (_BAR_WIDTH - filled) + f" {used} of {total} tokens"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "none"
