"""`slipstream drafters`: what a checkpoint is, whether it fits, and the same in other formats."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

drafters = typer.Typer(no_args_is_help=True, help="Drafters: what they are, and which are served.")
console = Console(highlight=False, markup=False, soft_wrap=True)

Checkpoint = Annotated[Path, typer.Argument(help="directory of an EAGLE-3 checkpoint")]


@drafters.command()
def inspect(
    path: Checkpoint,
    target_model: Annotated[
        Path | None, typer.Option(help="model directory of a target it should fit")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="address of a running target it should fit")
    ] = None,
) -> None:
    """Say what a checkpoint is and needs, and whether it fits a target: exit code 1 if not."""
    # Not every command needs torch.
    from slipstream.drafter_facts import DrafterFacts, misfit

    lines = DrafterFacts.of(path).lines()
    if target is None and target_model is None:
        _print(lines)
        return
    reason = misfit(path, target, target_model)
    _print(lines | {"fits": f"no: {reason}" if reason else "yes"})
    sys.exit(bool(reason))


@drafters.command()
def convert(
    path: Checkpoint,
    out: Annotated[Path, typer.Argument(help="an empty or new directory")],
    target_format: Annotated[
        Literal["sglang", "speculators"], typer.Option("--format", help="whose readers it is for")
    ],
    verifier: Annotated[
        str | None, typer.Option(help="name of the target, for readers of speculators")
    ] = None,
) -> None:
    """Write a checkpoint as another engine reads it: the same tensors, safetensors only."""
    from draft_service.drafters.checkpoint_config import CheckpointFormat
    from training.export import convert as convert_checkpoint

    convert_checkpoint(path, out, CheckpointFormat(target_format), verifier)
    console.print(str(out))


def _print(lines: dict[str, str]) -> None:
    width = max(map(len, lines))
    for heading, text in lines.items():
        console.print(f"{heading:<{width}}  {text}")
