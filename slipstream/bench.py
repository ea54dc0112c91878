"""`slipstream bench`: measure a running gateway, a local stack, or the simulator."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from slipstream.client import Client
from slipstream.connection import (
    ForcedOption,
    GatewayOption,
    LoadOption,
    ModelOption,
    Served,
    check_drafter,
    forcing,
    messages,
    served,
)
from slipstream.generate import Prompt, read_prompts
from slipstream.model_cache import DEFAULT_MODEL, resolve_model
from slipstream.output import new_file, writable
from slipstream.stack import WEIGHTS, default_drafters

if TYPE_CHECKING:
    from benchmarks.arms import Wish
    from benchmarks.reports import Presentation

app = typer.Typer(no_args_is_help=True, help="Measure; JSON, Markdown and pictures out.")
console = Console(highlight=False)

Weights = Annotated[str, typer.Option(help="the target's weights: auto, bf16, int8 or int4")]
Prompts = Annotated[
    Path | None,
    typer.Option(help='JSONL with {"task", "prompt" or "messages"} lines; none: six tasks'),
]
MaxNewTokens = Annotated[int, typer.Option(min=2, max=4096, help="longest answer, in tokens")]
Out = Annotated[
    Path | None,
    typer.Option("--json", callback=writable, help="report to write, with .md and .png beside it"),
]
TraceFile = Annotated[Path, typer.Option("--json", callback=writable, help="trace to write")]
Drafter = Annotated[str, typer.Option(help="drafter id; empty: the draft service's default")]
Steps = Annotated[int, typer.Option(min=1, help="of a fixed arm: depth of its tree")]
TopK = Annotated[int, typer.Option(min=1, help="children of a node; 1 is a chain")]
DraftTokens = Annotated[int | None, typer.Option(min=2, help="nodes verified a round, root too")]
Repeats = Annotated[int, typer.Option(min=1, max=100, help="times each is measured")]


@app.command()
def compare(
    prompts: Prompts = None,
    max_new_tokens: MaxNewTokens = 64,
    fixed: Annotated[
        list[str] | None, typer.Option(help="a fixed arm, as STEPSxTOP_KxDRAFT_TOKENS; repeat it")
    ] = None,
    steps: Steps = 5,
    top_k: TopK = 1,
    draft_tokens: DraftTokens = None,
    repeats: Repeats = 1,
    drafter: Drafter = "",
    forced_accept_length: ForcedOption = None,
    out: Out = None,
    gateway: GatewayOption = None,
    model: ModelOption = DEFAULT_MODEL,
    load: LoadOption = None,
    weights: Weights = "auto",
) -> None:
    """Plain decoding, fixed trees and auto, task by task, one request at a time."""
    # Not every command needs what it imports.
    from benchmarks import compare as benchmark
    from benchmarks import compare_report
    from benchmarks.arms import Wish, fixed_arms, parse_plan, plan_of

    plans = [parse_plan(text) for text in fixed or ()] or [plan_of(steps, top_k, draft_tokens)]
    wish = Wish(max_new_tokens, drafter, forced_accept_length)
    asked = _read(prompts)
    with _serving(gateway, model, load, weights, wish) as where:
        with Client(where.gateway) as client:
            found = benchmark.compare(client, asked, fixed_arms(plans), wish, repeats)
        report = _on_machine(found, where)
    _publish(report, compare_report, out)


@app.command()
def sweep(
    prompts: Prompts = None,
    num_prompts: Annotated[int, typer.Option(min=1, help="how many, of all tasks in turn")] = 8,
    max_new_tokens: MaxNewTokens = 48,
    steps: Annotated[str, typer.Option(help="depths, with commas")] = "1,2,3,4,6",
    top_k: Annotated[str, typer.Option(help="children of a node, with commas")] = "1,2,4",
    draft_tokens: Annotated[
        str, typer.Option(help="nodes verified a round, with commas")
    ] = "2,3,4,6,12",
    temperature: Annotated[str, typer.Option(help="temperatures, with commas")] = "0",
    drafter: Drafter = "",
    forced_accept_length: ForcedOption = None,
    out: Out = None,
    gateway: GatewayOption = None,
    model: ModelOption = DEFAULT_MODEL,
    load: LoadOption = None,
    weights: Weights = "auto",
) -> None:
    """A whole grid of settings at run time, and what auto made of it."""
    from benchmarks import sweep as benchmark
    from benchmarks import sweep_report
    from benchmarks.arms import Wish
    from benchmarks.grid import Grid, parse_fractions, parse_numbers

    texts = {"steps": steps, "top_k": top_k, "draft_tokens": draft_tokens}
    grid = Grid(*(parse_numbers(text, name) for name, text in texts.items()))
    temperatures = parse_fractions(temperature, "temperature")
    wish = Wish(max_new_tokens, drafter, forced_accept_length)
    asked = benchmark.pick(_read(prompts), num_prompts)
    messages.print(f"{len(grid.trees)} settings, {len(asked)} prompts")
    with _serving(gateway, model, load, weights, wish) as where:
        with Client(where.gateway) as client:
            found = benchmark.sweep(client, asked, grid, temperatures, wish)
        report = _on_machine(found, where)
    _publish(report, sweep_report, out)


@app.command()
def trace(
    prompt: Annotated[str, typer.Option("-p", "--prompt", help="the prompt")],
    max_new_tokens: MaxNewTokens = 64,
    mode: Annotated[str, typer.Option(help="auto, off (plain decoding) or fixed")] = "fixed",
    steps: Steps = 5,
    top_k: TopK = 1,
    draft_tokens: DraftTokens = None,
    drafter: Drafter = "",
    forced_accept_length: ForcedOption = None,
    out: Annotated[Path, typer.Option("--json", callback=writable, help="trace to write")] = Path(
        "trace.json"
    ),
    gateway: GatewayOption = None,
    model: ModelOption = DEFAULT_MODEL,
    load: LoadOption = None,
    weights: Weights = "auto",
) -> None:
    """One request's rounds as a trace of all services, for ui.perfetto.dev."""
    from benchmarks import trace as benchmark
    from benchmarks.arms import Wish, arm_of, plan_of

    arm = arm_of(mode, plan_of(steps, top_k, draft_tokens))
    wish = Wish(max_new_tokens, drafter, forced_accept_length)
    request = arm.options(wish).request(Prompt(prompt, ""))
    with _serving(gateway, model, load, weights, wish) as where:
        with Client(where.gateway) as client:
            client.complete(request)  # warm up
            chunks = list(client.stream(request))
        about = _on_machine({"arm": arm.name}, where)
    new_file(out).write_text(json.dumps(benchmark.trace(chunks, about)))
    messages.print(f"written: {out.name}; open it at https://ui.perfetto.dev")


@app.command()
def load(
    prompts: Prompts = None,
    max_new_tokens: MaxNewTokens = 64,
    streams: Annotated[str, typer.Option(help="at once, with commas")] = "1,2,4,8,16,32,64",
    rates: Annotated[str, typer.Option(help="requests a second, with commas")] = "0.5,1,2,4",
    seconds: Annotated[float, typer.Option(min=0.1, help="that every point is watched")] = 5,
    passes: Annotated[int, typer.Option(min=1, max=100, help="times the curves are run")] = 1,
    repeats: Repeats = 3,
    steps: Steps = 5,
    top_k: TopK = 1,
    draft_tokens: DraftTokens = None,
    drafter: Drafter = "",
    out: Out = None,
    gateway: GatewayOption = None,
    model: ModelOption = DEFAULT_MODEL,
    load: LoadOption = None,
    weights: Weights = "auto",
) -> None:
    """Many requests at once: ratios, and curves of throughput and latency."""
    from benchmarks import load_report
    from benchmarks import load_run as benchmark
    from benchmarks.arms import AUTO, PLAIN, Arm, Wish, plan_of
    from benchmarks.grid import parse_fractions, parse_numbers
    from benchmarks.load_curve import Asker, Points

    wish = Wish(max_new_tokens, drafter)
    asker = Asker(_read(prompts), wish)
    arms = [PLAIN, Arm.fixed(plan_of(steps, top_k, draft_tokens)), AUTO]
    points = Points(
        parse_numbers(streams, "streams"), parse_fractions(rates, "rates"), seconds, passes
    )
    with _serving(gateway, model, load, weights, wish) as where:
        found = benchmark.run(where.gateway, asker, arms, points, repeats)
        report = _on_machine(found, where)
    if out is None:
        console.print_json(data=report)
    else:
        _publish(report, load_report, out)


@app.command()
def simulate(
    plots: Annotated[Path | None, typer.Option(help="directory for pictures, as in docs/")] = None,
    policy: Annotated[
        bool, typer.Option(help="compare auto with plain and tuned decoding, too; minutes")
    ] = False,
) -> None:
    """The simulator against what others have measured: every figure beside the simulated one."""
    from benchmarks import simulate as simulate_benchmark

    simulate_benchmark.run(plots, policy=policy, show=console.print_json)


@app.command()
def adversity(
    scenario: Annotated[
        list[str] | None,
        typer.Option(help="quality, delay, cost, load or gone; repeat it; none: all of them"),
    ] = None,
    fixed: Annotated[
        list[str] | None, typer.Option(help="a fixed arm, as STEPSxTOP_KxDRAFT_TOKENS; repeat it")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=1, help="of auto's decoding before and after each change")
    ] = 45.0,
    prompts: Prompts = None,
    seed: Annotated[int, typer.Option(min=0, help="orders prompts and arms")] = 0,
    model: ModelOption = DEFAULT_MODEL,
    load: LoadOption = None,
    weights: Weights = "auto",
    out: Annotated[Path, typer.Option(help="directory of report, tables and pictures")] = Path(
        "build/adversity"
    ),
) -> None:
    """Let things go wrong while a local stack serves: exit code 1 if auto then loses."""
    from benchmarks.adversity import run as benchmark
    from benchmarks.adversity.scenario import SCENARIO_NAMES

    _check_weights(weights)
    directory = resolve_model(model)
    options = benchmark.AdversityOptions(
        directory,
        load or default_drafters(directory),
        _read(prompts),
        scenario or SCENARIO_NAMES,
        fixed or benchmark.DEFAULT_SETTINGS,
        seconds,
        seed=seed,
        weights=weights,
    )
    found = benchmark.run(options, out, messages.print)
    console.print((out / "adversity.md").read_text(), markup=False, soft_wrap=True)
    if any(one.failed for one in found):
        raise typer.Exit(1)


def _read(path: Path | None) -> Sequence[Prompt]:
    from benchmarks.arms import SIX_TASKS

    return read_prompts(None, path or SIX_TASKS)


@contextmanager
def _serving(
    gateway: str | None, model: str, load: list[str] | None, weights: str, wish: Wish
) -> Iterator[Served]:
    _check_weights(weights)
    target_args = ["--weights", weights, *forcing(wish.forced_accept_length)]
    with served(gateway, model, load, target_args) as where:
        check_drafter(where.gateway, wish.drafter)
        yield where


def _check_weights(weights: str) -> None:
    if weights not in WEIGHTS:
        raise typer.BadParameter(f"must be one of {', '.join(WEIGHTS)}, got {weights!r}")


def _on_machine(report: dict[str, Any], where: Served) -> dict[str, Any]:
    from benchmarks.machine import describe

    return report | {"machine": describe(where.target)}


def _publish(report: dict[str, Any], shown: Presentation, out: Path | None) -> None:
    """Show the tables, and write them with JSON and picture if a file is named."""
    from benchmarks.reports import write

    console.print(shown.markdown(report), markup=False, soft_wrap=True)
    if out is not None:
        names = ", ".join(path.name for path in write(report, shown, out))
        messages.print(f"written: {names}")
