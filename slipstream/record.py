"""`slipstream record`: a target's conversations and their taps, to train drafters on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import grpc
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from protos import target_pb2
from protos.pairing import Pairing
from slipstream.stack import Addresses, LocalStack, StackConfig
from training.chat_frame import ChatFrame
from training.live import LiveRecorder
from training.made_up import made_up_scripts
from training.package_prompts import package_scripts
from training.record import Recorder, RecordSettings, source_of
from training.recording import Recording
from training.script import Script, read_scripts
from training.tap_encoding import check_encoding
from training.target_client import connect

_GIB = 2**30


@dataclass(frozen=True)
class RecordOptions:
    """What to record, and where it goes."""

    directory: Path
    model: Path
    settings: RecordSettings
    prompt_files: Sequence[Path] = ()
    packages: Sequence[str] = ()
    seed: int = 0
    taps: str = "bf16"
    max_gib: float = 20.0
    flush_s: float = 60.0


def run_record(options: RecordOptions, target: str | None, console: Console) -> None:
    """Record a running target, or one of its own for as long as it takes.

    Raises ValueError for prompts or a directory that will not do, DiskFullError, RpcError.
    """
    # What is wrong with a prompt file is said before a target is started.
    check_encoding(options.taps)
    files = chain.from_iterable(map(read_scripts, options.prompt_files))
    scripts = [*files, *chain.from_iterable(map(package_scripts, options.packages))]
    endless = made_up_scripts(options.seed)
    with _target(target, options) as address:
        asyncio.run(_record(options, address, iter(scripts) if scripts else endless, console))


def run_live(options: RecordOptions, target: str, share: float, console: Console) -> None:
    """Record what a running target is asked by others. Raises DiskFullError, RpcError."""
    asyncio.run(_record_live(options, target, share, console))


@contextlib.contextmanager
def _target(address: str | None, options: RecordOptions) -> Iterator[str]:
    if address is not None:
        yield address
        return
    sessions = str(2 * options.settings.concurrency)
    config = StackConfig(
        options.model,
        Addresses.free(),
        target_args=("--max-sessions", sessions, "--kv-tokens", "131072"),
        services=("target",),
    )
    with LocalStack(config) as stack:
        yield stack.addresses.target


async def _record(
    options: RecordOptions, address: str, scripts: Iterator[Script], console: Console
) -> None:
    async with connect(address) as target:
        info = await target.info()
        frame, pairing = ChatFrame.from_directory(options.model), Pairing.from_proto(info.pairing)
        recorder = Recorder(target, frame, pairing, info.max_context_len, options.settings)
        with _recording(options, info, console) as (recording, told), _first_of_a_group():
            await recorder.record(scripts, recording, told)


async def _record_live(
    options: RecordOptions, address: str, share: float, console: Console
) -> None:
    async with connect(address) as target:
        info = await target.info()
        pairing = Pairing.from_proto(info.pairing)
        recorder = LiveRecorder(target, pairing, options.settings.num_tokens, share)
        with _recording(options, info, console) as (recording, told), _first_of_a_group():
            await recorder.record(recording, told)


@contextlib.contextmanager
def _recording(
    options: RecordOptions, info: target_pb2.GetTargetResponse, console: Console
) -> Iterator[tuple[Recording, Callable[[], None]]]:
    """Yield the recording, and what shows how far it has come."""
    source = source_of(info, options.taps)
    max_bytes = int(options.max_gib * _GIB)
    recording = Recording(options.directory, source, max_bytes, options.flush_s)
    with _progress(console) as progress:
        task = progress.add_task("", total=options.settings.num_tokens)

        def told() -> None:
            conversations = f"{recording.num_samples} conversations"
            progress.update(task, completed=recording.num_tokens, description=conversations)

        told()
        try:
            yield recording, told
        finally:
            told()
            wanted = options.settings.num_tokens
            missing = recording.num_tokens < wanted
            console.print(
                f"{recording.num_samples} conversations, {recording.num_tokens} tokens in "
                f"{options.directory}"
                + (f"; the same command goes on up to {wanted}" if missing else "")
            )


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tokens"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )


@contextlib.contextmanager
def _first_of_a_group() -> Iterator[None]:
    """Of many conversations that failed together, say why the first did."""
    try:
        yield
    except* (grpc.RpcError, OSError, ValueError) as failed:
        raise _first(failed) from None


def _first(failed: BaseException) -> BaseException:
    while isinstance(failed, BaseExceptionGroup):
        failed = failed.exceptions[0]
    return failed
