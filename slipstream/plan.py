"""`slipstream plan`: what speculation would bring on your hardware, and how many drafters."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from slipstream.forecast_table import advice, as_json, table
from slipstream.output import new_file, writable

# What simulates takes a second to import.
if TYPE_CHECKING:
    from benchmarks.simulation.acceptance import Acceptance
    from benchmarks.simulation.hardware import Hardware

# As in benchmarks.simulation.presets.
HARDWARE = ("kimi-k2.5-8xh200", "kimi-k2.5-8xpro6000", "dense-70b")
_MAX_SESSIONS = 256

console = Console(highlight=False)


def plan(
    hardware: Annotated[str, typer.Option(help=f"one of {', '.join(HARDWARE)}")] = HARDWARE[0],
    accept: Annotated[
        str, typer.Option(help="share of rounds that accept the draft at depth 1, 2, ...: 0.83,0.6")
    ] = "",
    accept_length: Annotated[
        float | None, typer.Option(help="or tokens a round with a chain of --accept-steps")
    ] = None,
    accept_steps: Annotated[int, typer.Option(min=1, max=63, help="see --accept-length")] = 3,
    sessions: Annotated[str, typer.Option(help="loads: sessions at once")] = "1,4,16,64",
    plain: Annotated[
        float | None,
        typer.Option(min=0.1, help="tokens a second of one session, plainly, of yours"),
    ] = None,
    draft_step_ms: Annotated[
        float | None,
        typer.Option(min=0, max=1e5, help="a step of your drafter, on a machine of its own"),
    ] = None,
    rtt_ms: Annotated[float, typer.Option(min=0, max=1000, help="between the services")] = 0.4,
    gbit_s: Annotated[float, typer.Option(min=0.01, help="from target to drafter")] = 25.0,
    seed: Annotated[int, typer.Option(min=0, help="same seed, same figures")] = 0,
    json_out: Annotated[
        Path | None, typer.Option("--json", callback=writable, help="write all figures here")
    ] = None,
    png: Annotated[Path | None, typer.Option(callback=writable, help="draw a picture here")] = None,
) -> None:
    """Say what speculation would bring: a simulation of your hardware with the gateway's policy."""
    from benchmarks.simulation.forecast import forecasts

    try:
        machine = machine_of(hardware, plain, draft_step_ms, rtt_ms, gbit_s)
        quality = acceptance_of(accept, accept_length, accept_steps)
        loads = loads_of(sessions)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    found = forecasts(machine, quality, loads, seed)
    console.print(table(found, hardware))
    console.print(advice(found))
    if json_out is not None:
        new_file(json_out).write_text(json.dumps([as_json(one) for one in found], indent=2) + "\n")
    if png is not None:
        from benchmarks.simulation.plots import plot_forecasts

        plot_forecasts(found, hardware, new_file(png))


def machine_of(
    name: str, plain: float | None, draft_step_ms: float | None, rtt_ms: float, gbit_s: float
) -> Hardware:
    """Return a preset with what is known better. Raises ValueError for what cannot be."""
    from benchmarks.simulation.presets import PRESETS, scaled_to_plain

    if name not in PRESETS:
        raise ValueError(f"hardware must be one of {', '.join(PRESETS)}, got {name!r}")
    machine = PRESETS[name]
    assert machine.network is not None, "presets are of services"
    machine = replace(machine, network=replace(machine.network, rtt_ms=rtt_ms, gbit_s=gbit_s))
    if plain is not None:
        machine = replace(machine, target=scaled_to_plain(machine.target, plain))
    if draft_step_ms is not None:
        drafter = replace(machine.drafter, extend_ms=draft_step_ms, step_ms=draft_step_ms)
        machine = replace(machine, drafter=drafter)
    return machine


def acceptance_of(accept: str, accept_length: float | None, steps: int) -> Acceptance:
    """Return a drafter's quality; a good drafter of Kimi-K2.5 if nothing is said."""
    from benchmarks.grid import parse_fractions
    from benchmarks.simulation.acceptance import Acceptance

    if accept and accept_length is not None:
        raise ValueError(f"give accept or accept_length, not both: {accept!r} and {accept_length}")
    if accept:
        return Acceptance(tuple(parse_fractions(accept, "accept")))
    quality = Acceptance()
    return quality if accept_length is None else quality.scaled_to(accept_length, steps)


def loads_of(sessions: str) -> list[int]:
    """Return the loads of a list such as "1,4,16"."""
    from benchmarks.grid import parse_numbers

    loads = parse_numbers(sessions, "sessions")
    if not all(1 <= load <= _MAX_SESSIONS for load in loads):
        raise ValueError(f"sessions must each be in [1, {_MAX_SESSIONS}], got {sessions!r}")
    return loads
