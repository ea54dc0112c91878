"""What a command talks to: a gateway that runs, or a local stack that ends with the command."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console

from slipstream.client import Client
from slipstream.model_cache import cache_dir, resolve_model
from slipstream.stack import Addresses, LocalStack, StackConfig, default_drafters

messages = Console(stderr=True, highlight=False)

ModelOption = Annotated[str, typer.Option(help="name of a fetched model, or its directory")]
LoadOption = Annotated[
    list[str] | None,
    typer.Option(
        help="drafter of a local stack: `ngram`, a shipped one, ID=DIRECTORY; the first is default"
    ),
]
GatewayOption = Annotated[
    str | None, typer.Option(help="address of a running gateway; none: a temporary local stack")
]
ForcedOption = Annotated[
    float | None,
    typer.Option(min=1, help="simulate: accept drafts, right or wrong, to this accept length"),
]


def forcing(accept_length: float | None) -> list[str]:
    """Return the flags that a target of our own needs for forced acceptance."""
    return [] if accept_length is None else ["--allow-forced-acceptance"]


def keeping_experience() -> list[str]:
    """Return the flags of a gateway that begins with what others here have learned."""
    return ["--experience", str(cache_dir() / "experience.json")]


@dataclass(frozen=True)
class Served:
    """Where requests are answered. The target of a gateway that runs already is not known."""

    gateway: str
    target: str | None = None


@contextlib.contextmanager
def served(
    gateway: str | None,
    model: str,
    load: Sequence[str] | None,
    target_args: Sequence[str] = (),
    gateway_args: Sequence[str] = (),
) -> Iterator[Served]:
    """Return a running gateway, or start a stack with these drafters and flags of the services.

    Raises StackError if it does not start.
    """
    if gateway is not None:
        yield Served(gateway)
        return
    directory = resolve_model(model)
    drafters = load or default_drafters(directory)
    config = StackConfig(
        directory, Addresses.free(), drafters, target_args, gateway_args=gateway_args
    )
    with messages.status("starting a local stack"):
        stack = LocalStack(config)
        stack.start()
    try:
        yield Served(stack.addresses.gateway, stack.addresses.target)
    finally:
        stack.stop()


@contextlib.contextmanager
def connected(
    gateway: str | None, model: str, load: Sequence[str] | None, target_args: Sequence[str] = ()
) -> Iterator[Client]:
    """Return a client of what is `served`. A stack of its own keeps what it learns of costs."""
    stack = served(gateway, model, load, target_args, keeping_experience())
    with stack as where, Client(where.gateway) as client:
        yield client


def check_drafter(gateway: str, drafter_id: str) -> None:
    """Raise BadParameter for a drafter that no replica has. Empty stands for the default."""
    if not drafter_id:
        return
    with Client(gateway) as client:
        known = client.info().drafter_ids
    # Replicas that have not loaded theirs yet say nothing.
    if known and drafter_id not in known:
        raise typer.BadParameter(f"no drafter {drafter_id!r}; known: {', '.join(known)}")
