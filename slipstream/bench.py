"""`slipstream bench`: measure a local stack."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from slipstream.model_cache import DEFAULT_MODEL

app = typer.Typer(no_args_is_help=True, help="Measure; JSON out.")
console = Console(highlight=False)

ModelOption = Annotated[str, typer.Option(help="name of a fetched model, or its directory")]
Weights = Annotated[str, typer.Option(help="the target's weights: auto, bf16, int8 or int4")]


@app.command()
def load(
    model: ModelOption = DEFAULT_MODEL,
    weights: Weights = "auto",
    repeats: Annotated[int, typer.Option(min=1, max=100, help="times each is measured")] = 3,
) -> None:
    """Many requests at once against one at a time, on a local stack of its own."""
    # Not every command needs what it imports.
    from benchmarks import load as load_benchmark

    load_benchmark.run(model, weights, repeats, console.print_json)
