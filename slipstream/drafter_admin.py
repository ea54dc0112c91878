"""`slipstream drafters`: load, swap and compare the drafters of a draft service that serves."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from google.protobuf.json_format import MessageToJson
from rich.console import Console

from protos import draft_admin_pb2 as pb
from protos import draft_admin_pb2_grpc
from protos.draft_pb2 import (
    DRAFTER_STATE_LOADING,
    Canary,
    DrafterInfo,
    PromotionRule,
)
from slipstream.drafter_table import drafter_lines
from slipstream.probe import list_drafters, open_channel
from slipstream.stack import Addresses

app = typer.Typer(
    no_args_is_help=True, help="Load, swap and compare drafters while they are served."
)
console = Console(highlight=False)

_TIMEOUT_S = 5.0
_POLL_S = 0.2
_BETTER_BY = "better-by"
_SHARE = re.compile(r"(\d+(?:\.\d+)?)(%?)")

Draft = Annotated[str, typer.Option(help="address of the draft service")]
DrafterId = Annotated[str, typer.Argument(help="drafter id")]


@app.command("list")
def list_command(
    draft: Draft = Addresses.draft,
    json: Annotated[bool, typer.Option("--json", help="everything, as one JSON object")] = False,
) -> None:
    """Show the drafters, how they do, the canary and the shadow."""
    listed = list_drafters(draft)
    if json:
        print(MessageToJson(listed, preserving_proto_field_name=True, indent=None))
        return
    for line in drafter_lines(listed):
        console.print(line)


@app.command()
def load(
    drafter: Annotated[str, typer.Argument(help="`ngram` or ID=DIRECTORY, of its machine")],
    draft: Draft = Addresses.draft,
) -> None:
    """Load a drafter, and wait until it is ready or refused."""
    drafter_id, _, directory = drafter.partition("=")
    here = Path(directory)
    if directory and here.is_dir():
        directory = str(here.resolve())
    with _admin(draft) as admin:
        request = pb.LoadDrafterRequest(drafter_id=drafter_id, directory=directory)
        admin.LoadDrafter(request, timeout=_TIMEOUT_S)
    info = _wait_for(draft, drafter_id)
    if info.refusal:
        sys.exit(f"error: {drafter_id} was refused: {info.refusal}")
    console.print(f"{drafter_id} is ready ({info.kind})")


def _wait_for(draft: str, drafter_id: str) -> DrafterInfo:
    """Return what became of a drafter that is being loaded."""
    while True:
        found = [one for one in list_drafters(draft).drafters if one.drafter_id == drafter_id]
        if not found:
            raise ValueError(f"{drafter_id} was unloaded, or the draft service began anew")
        if found[0].state != DRAFTER_STATE_LOADING:
            return found[0]
        time.sleep(_POLL_S)


@app.command()
def unload(drafter_id: DrafterId, draft: Draft = Addresses.draft) -> None:
    """Give a drafter no new sessions; it is freed when the last one ends."""
    with _admin(draft) as admin:
        request = pb.UnloadDrafterRequest(drafter_id=drafter_id)
        answer = admin.UnloadDrafter(request, timeout=_TIMEOUT_S)
    left = f" once its {answer.sessions} sessions end" if answer.sessions else ""
    console.print(f"{drafter_id} is unloaded{left}")


@app.command()
def default(drafter_id: DrafterId, draft: Draft = Addresses.draft) -> None:
    """Let new sessions that name no drafter take this one."""
    with _admin(draft) as admin:
        request = pb.SetDefaultDrafterRequest(drafter_id=drafter_id)
        answer = admin.SetDefaultDrafter(request, timeout=_TIMEOUT_S)
    console.print(f"the default is {drafter_id}, it was {answer.previous_drafter_id}")


@app.command()
def canary(
    drafter_id: DrafterId,
    share: Annotated[str, typer.Argument(help="of sessions that name no drafter: 20%; 0% ends it")],
    draft: Draft = Addresses.draft,
) -> None:
    """Give a drafter a share of the sessions that name none."""
    given = Canary(drafter_id=drafter_id, share=parse_share(share))
    with _admin(draft) as admin:
        admin.SetCanary(pb.SetCanaryRequest(canary=given), timeout=_TIMEOUT_S)
    console.print(f"{drafter_id} takes {given.share:.1%} of the sessions that name no drafter")


@app.command()
def shadow(
    drafter_id: Annotated[str, typer.Argument(help="drafter id; with --stop none")] = "",
    share: Annotated[str, typer.Option(help="of the default drafter's sessions")] = "100%",
    promote_if: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="better-by X%", help="make it the default once that is sure"),
    ] = None,
    confidence: Annotated[str, typer.Option(help="how sure")] = "95%",
    max_rounds: Annotated[int, typer.Option(min=1, help="end it undecided after these")] = 20_000,
    stop: Annotated[bool, typer.Option("--stop", help="end the shadow")] = False,
    draft: Draft = Addresses.draft,
) -> None:
    """Let a drafter draft beside the default, unsent, and compare the two."""
    if stop == bool(drafter_id):
        raise ValueError("give either a drafter id or --stop")
    with _admin(draft) as admin:
        if stop:
            admin.StopShadow(pb.StopShadowRequest(), timeout=_TIMEOUT_S)
            console.print("no shadow runs")
            return
        rule = promotion_rule(promote_if, confidence, max_rounds) if promote_if else None
        request = pb.StartShadowRequest(
            drafter_id=drafter_id, share=parse_share(share), promote_if=rule
        )
        answer = admin.StartShadow(request, timeout=_TIMEOUT_S)
    console.print(
        f"{drafter_id} shadows {answer.incumbent_id}; `slipstream drafters list` shows it"
    )


def promotion_rule(words: tuple[str, str], confidence: str, max_rounds: int) -> PromotionRule:
    """Return the rule that `better-by X%` stands for. Raises ValueError for anything else."""
    if words[0] != _BETTER_BY:
        raise ValueError(f"--promote-if must be `{_BETTER_BY} X%`, got {' '.join(words)!r}")
    return PromotionRule(
        better_by=parse_share(words[1]), confidence=parse_share(confidence), max_rounds=max_rounds
    )


def parse_share(text: str) -> float:
    """Return 0.2 for "20%" and for "0.2". Raises ValueError for anything else."""
    written = _SHARE.fullmatch(text)
    if written is None:
        raise ValueError(f"a share is written 20% or 0.2, got {text!r}")
    return float(written[1]) / (100 if written[2] else 1)


@contextlib.contextmanager
def _admin(address: str) -> Iterator[draft_admin_pb2_grpc.DraftAdminServiceStub]:
    with open_channel(address) as channel:
        yield draft_admin_pb2_grpc.DraftAdminServiceStub(channel)
