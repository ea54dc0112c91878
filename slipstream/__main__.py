"""The command line: models, a local stack, answers, drafters, measurements, a doctor."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import grpc
import typer
from rich.console import Console
from rich.live import Live

from protos import serving
from slipstream import bench, drafter_admin, making
from slipstream.chat import Chat, summary
from slipstream.connection import (
    ForcedOption,
    GatewayOption,
    LoadOption,
    ModelOption,
    connected,
    forcing,
    keeping_experience,
    messages,
)
from slipstream.demo import run_demo
from slipstream.doctor import examine
from slipstream.drafters import drafters
from slipstream.fetch import fetch as fetch_model
from slipstream.generate import Options, as_json, generate, read_prompts, trouble
from slipstream.model_cache import DEFAULT_MODEL, resolve_model
from slipstream.plan import plan
from slipstream.probe import is_healthy
from slipstream.stack import (
    WEIGHTS,
    Addresses,
    LocalStack,
    StackConfig,
    StackError,
    default_drafters,
)
from slipstream.top import looks, view

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
console = Console(highlight=False)

MaxNewTokens = Annotated[int, typer.Option(min=1, max=2**31, help="longest answer, in tokens")]
Temperature = Annotated[float, typer.Option(min=0, help="0 is greedy")]
TopP = Annotated[float, typer.Option(help="keep the likeliest tokens holding this mass")]
Seed = Annotated[int | None, typer.Option(min=0, max=2**64 - 1, help="same seed, same text")]
Mode = Annotated[str, typer.Option(help="auto, off (plain decoding) or fixed")]
Steps = Annotated[
    int | None, typer.Option(min=0, help="depth of the draft tree (fixed), or the most (auto)")
]
TopK = Annotated[
    int | None, typer.Option(min=1, help="children of a node of the draft tree; 1 is a chain")
]
DraftTokens = Annotated[int | None, typer.Option(min=1, help="nodes verified a round, root too")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="port on the loopback address")]
Weights = Annotated[str, typer.Option(help="the target's weights: auto, bf16, int8 or int4")]
Drafter = Annotated[str, typer.Option(help="drafter id; empty: the draft service's default")]


@app.command()
def fetch(name: Annotated[str, typer.Argument(help="known model")] = DEFAULT_MODEL) -> None:
    """Download a known model into the cache."""
    console.print(str(fetch_model(name)))


@app.command()
def up(
    model: ModelOption = DEFAULT_MODEL,
    load: LoadOption = None,
    gateway_port: Port = 50050,
    target_port: Port = 50051,
    draft_port: Port = 50052,
    http_port: Port = 8000,
    weights: Weights = "auto",
    device: Annotated[
        str | None, typer.Option(help="the target's: cpu, cuda, cuda:N or auto")
    ] = None,
    tensor_parallel: Annotated[
        int | None, typer.Option(min=1, help="GPUs that share every layer of the target")
    ] = None,
) -> None:
    """Run all three services here until Ctrl-C."""
    if weights not in WEIGHTS:
        raise typer.BadParameter(f"must be one of {', '.join(WEIGHTS)}, got {weights!r}")
    serving.configure_logging("info")
    ports = (gateway_port, target_port, draft_port, http_port)
    addresses = Addresses(*(f"127.0.0.1:{port}" for port in ports))
    directory = resolve_model(model)
    config = StackConfig(
        directory,
        addresses,
        load or default_drafters(directory),
        target_args=("--weights", weights, *_on_devices(device, tensor_parallel)),
        gateway_args=keeping_experience(),
        log_to_terminal=True,
    )
    with LocalStack(config) as stack:
        messages.print(
            f"[bold]ready[/] gateway {addresses.gateway}, target {addresses.target}, "
            f"draft {addresses.draft}, OpenAI's API http://{addresses.http}/v1. Ctrl-C stops them.",
            soft_wrap=True,
        )
        stack.wait()


def _on_devices(device: str | None, tensor_parallel: int | None) -> list[str]:
    """Return what was said of the target's devices; the environment may say it, too."""
    said = {"--device": device, "--tensor-parallel": tensor_parallel}
    return [
        word for flag, value in said.items() if value is not None for word in (flag, str(value))
    ]


@app.command("generate")
def generate_command(
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", help="the prompt")] = None,
    prompt_file: Annotated[
        Path | None, typer.Option(help='JSONL with {"prompt", "task"} lines')
    ] = None,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = None,
    mode: Mode = "auto",
    steps: Steps = None,
    top_k: TopK = None,
    draft_tokens: DraftTokens = None,
    drafter: Drafter = "",
    forced_accept_length: ForcedOption = None,
    raw: Annotated[bool, typer.Option("--raw", help="do not use the chat template")] = False,
    gateway: GatewayOption = None,
    model: ModelOption = DEFAULT_MODEL,
    load: LoadOption = None,
    json_lines: Annotated[
        bool, typer.Option("--json", help="one JSON object a prompt, in order")
    ] = False,
) -> None:
    """Answer prompts."""
    prompts = read_prompts(prompt, prompt_file)
    options = Options(
        sampling={"temperature": temperature, "top_p": top_p, "seed": seed},
        stopping={"max_new_tokens": max_new_tokens},
        speculation={
            "steps": steps,
            "top_k": top_k,
            "draft_tokens": draft_tokens,
            "drafter_id": drafter,
            "forced_accept_length": forced_accept_length,
        },
        mode=mode,
        raw=raw,
    )
    # What the client can refuse is refused before anything is started.
    options.request(prompts[0]).to_proto()
    with connected(gateway, model, load, forcing(forced_accept_length)) as client:
        for index, (asked, answer) in enumerate(generate(client, prompts, options)):
            if json_lines:
                print(as_json(index, asked, answer), flush=True)
                if reason := trouble(answer):
                    messages.print(f"[yellow]{reason}[/]")
            else:
                print(answer.text, flush=True)
                messages.print(f"[dim]{summary(answer)}[/]")


@app.command()
def chat(
    max_new_tokens: MaxNewTokens = 512,
    temperature: Temperature = 0.7,
    top_p: TopP = 0.95,
    seed: Seed = None,
    mode: Mode = "auto",
    drafter: Drafter = "",
    gateway: GatewayOption = None,
    model: ModelOption = DEFAULT_MODEL,
    load: LoadOption = None,
) -> None:
    """Talk to the model; drafted-and-accepted words are green."""
    options = Options(
        sampling={"temperature": temperature, "top_p": top_p, "seed": seed},
        stopping={"max_new_tokens": max_new_tokens},
        speculation={"drafter_id": drafter},
        mode=mode,
    )
    with connected(gateway, model, load) as client:
        Chat(client, options, console).run()


@app.command()
def demo(model: ModelOption = DEFAULT_MODEL, load: LoadOption = None) -> None:
    """One prompt, plain and speculated, through three processes; compare texts and speed."""
    with connected(None, model, load) as client:
        if not run_demo(client, console):
            sys.exit("error: the texts differ; please report this with the output of the doctor")


@app.command()
def doctor(
    model: ModelOption = DEFAULT_MODEL,
    services: Annotated[
        bool, typer.Option("--services", help="look at running services too")
    ] = False,
    gateway: Annotated[str, typer.Option(help="address")] = Addresses.gateway,
    target: Annotated[str, typer.Option(help="address")] = Addresses.target,
    draft: Annotated[str, typer.Option(help="address")] = Addresses.draft,
) -> None:
    """Check environment, model and pairing; say what is wrong and how to mend it."""
    addresses = Addresses(gateway, target, draft) if services else None
    wrong = 0
    for finding in examine(model, addresses):
        mark = "[green]ok[/]  " if finding.ok else "[red]FAIL[/]"
        console.print(f"{mark} {finding.subject}: {finding.detail}")
        if not finding.ok:
            wrong += 1
            console.print(f"     remedy: {finding.remedy}")
    if wrong:
        sys.exit(1)


@app.command()
def probe(address: Annotated[str, typer.Argument(help="HOST:PORT of any service")]) -> None:
    """Exit with 0 if a service is healthy: for container health checks."""
    if not is_healthy(address):
        sys.exit(f"{address} is not healthy")


@app.command()
def top(
    target: Annotated[str, typer.Option(help="address")] = Addresses.target,
    draft: Annotated[str, typer.Option(help="address")] = Addresses.draft,
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="seconds")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="look once, then end")] = False,
) -> None:
    """Watch running services: sessions, rows, KV cache, accept length, tokens/s."""
    pairs = looks(target, draft, interval)
    if once:
        before, now = next(pairs)
        console.print(view(before, now))
        sys.exit(now.target is None or now.draft is None)
    if not console.is_terminal:
        for pair in pairs:
            console.print(view(*pair))
    with Live(console=console, auto_refresh=False) as live:
        for pair in pairs:
            live.update(view(*pair), refresh=True)


for command in (making.record, making.train, making.evaluate, making.ship):
    app.command()(command)
drafters.add_typer(drafter_admin.app)

app.command()(plan)
app.add_typer(bench.app, name="bench")
app.add_typer(drafters, name="drafters")


def _terminate(number: int, frame: object) -> None:
    """Leave as Ctrl-C does, so that a local stack is stopped in order."""
    del frame
    raise SystemExit(128 + number)


def main() -> None:
    """Run the command line; a user's mistake ends as one line, not a traceback."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app()
    except (ValueError, OSError, RuntimeError, StackError) as error:
        sys.exit(f"error: {error}")
    except grpc.RpcError as error:
        sys.exit(f"error: {error.code().name}: {error.details()}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
