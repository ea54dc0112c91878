"""`slipstream evaluate`: a drafter judged on conversations that were held out.

Offline it drafts along the recorded answers; online the same prompts go through running services.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from draft_service.drafters.eagle3 import Eagle3Drafter
from draft_service.scoring import Scored
from kernels import native
from slipstream.client import Client, Request
from slipstream.drafter_facts import side_of
from training.dataset import Dataset
from training.evaluate import evaluate, report_of, write_report
from training.replay import Round
from training.sample import Sample

# Sessions that are replayed side by side, of the recorded length each.
_KV_TOKENS = 32768


@dataclass(frozen=True)
class EvaluateOptions:
    """What is judged, on what, and where the report goes."""

    recordings: Sequence[Path]
    model: Path
    steps: int
    max_len: int
    threads: int
    out: Path | None = None


def run_evaluate(drafter_dir: Path, options: EvaluateOptions, console: Console) -> None:
    """Judge a checkpoint on what recordings hold out. Raises ValueError if it does not fit."""
    native.select("auto", options.threads)
    dataset = _held_out(options)
    drafter = Eagle3Drafter.load(
        "judged", drafter_dir, side_of(options.model), kv_tokens=_KV_TOKENS
    )
    _tell(evaluate(drafter, dataset, options.steps).as_json(), options, console)


def run_online(gateway: str, drafter_id: str, options: EvaluateOptions, console: Console) -> None:
    """Let running services answer what recordings hold out. Raises RpcError."""
    samples = list(_held_out(options).samples())
    with Client(gateway) as client:
        rounds = [
            one
            for sample in track(samples, "answering", console=console)
            for one in online_rounds(client, sample, drafter_id, options.steps)
        ]
    _tell(report_of(rounds, options.steps).as_json(), options, console)


def _held_out(options: EvaluateOptions) -> Dataset:
    return Dataset(options.recordings, held_out=True, max_len=options.max_len)


def online_rounds(client: Client, sample: Sample, drafter_id: str, steps: int) -> Iterator[Round]:
    """Let the last answer of a conversation be given once more; yield its rounds.

    As offline, a round is left out if its deepest draft lies behind the end.
    """
    begin = sample.facts.answers[-1][0]
    chunks = list(client.stream(_request(sample, drafter_id, steps)))
    end = begin + sum(len(chunk.token_ids) for chunk in chunks)
    committed_len = begin
    for chunk in chunks:
        # The prompt's own token is no round.
        if begin < committed_len <= end - steps:
            accepted = len(chunk.token_ids) - 1
            yield Round(sample, Scored(committed_len, (), accepted, ()), ())
        committed_len += len(chunk.token_ids)


def _request(sample: Sample, drafter_id: str, steps: int) -> Request:
    begin, end = sample.facts.answers[-1]
    sampling = sample.facts.sampling
    return Request(
        token_ids=sample.tokens_N[:begin].tolist(),
        sampling={
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
        },
        stopping={"max_new_tokens": end - begin},
        speculation={
            "steps": steps,
            "top_k": 1,
            "draft_tokens": steps + 1,
            "drafter_id": drafter_id,
        },
        mode="fixed",
    )


def _tell(found: Mapping[str, Any], options: EvaluateOptions, console: Console) -> None:
    for name, card in found["scores"].items():
        rates = " ".join(f"{rate:.3f}" for rate in card["accepted_by_position"])
        between = "" if card["between"] is None else "  [{:.2f}, {:.2f}]".format(*card["between"])
        console.print(
            f"{name:<28} {card['accept_length']:.3f}{between}  by position {rates}  "
            f"({card['rounds']} rounds, {card['sessions']} conversations)"
        )
    if "calibration" in found:
        calibration = found["calibration"]
        console.print(
            f"calibration error {calibration['expected_error']:.3f}, at temperature "
            f"{calibration['temperature']:.2f} {calibration['expected_error_calibrated']:.3f}"
        )
    if options.out is not None:
        write_report(found, options.out)
        console.print(f"report in {options.out}")
