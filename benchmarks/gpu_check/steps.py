"""The target's step on a device: launched one by one and replayed, with the same outcome.

Models are made up, but for the embedded one where it was fetched: what a step takes does not depend
on what its weights are.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_check import kimi_pair
from benchmarks.gpu_check.case import KIMI, bytes_of
from benchmarks.gpu_check.launches import CountingCapture
from benchmarks.gpu_check.made_up import LlamaShape, MadeUp
from kernels.gpu.graphs import Capture
from protos.messages import DraftTree, SamplingParams
from target_service.device_engine import DeviceEngine, Load
from target_service.device_steps import Place
from target_service.kv_memory import pages_for
from target_service.models import build_model, model_config
from target_service.models.target_model import TargetModel
from target_service.session import SPARE_SLOTS, Rows, Session
from target_service.weights import Weights, read_config

_REPEATS = 20
_CHUNK = 64


@dataclass(frozen=True)
class StepLoad:
    """The sessions of a step, which verify chains of drafts behind a context."""

    sessions: int = 8
    context: int = 512
    drafts: int = 3

    @property
    def slots(self) -> int:
        """The most of a session."""
        return self.context + SPARE_SLOTS

    @property
    def rows(self) -> int:
        return self.sessions * (1 + self.drafts)


_EMBEDDED = LlamaShape("SmolLM2-135M's widths", 576, 1536, 30, 9, 3, 64, 49152)
_LLAMA_70B = LlamaShape("two layers of Llama-70B", 8192, 28672, 2, 64, 8, 128, 128256)


def models(
    load: StepLoad, embedded_dir: Path | None, device: torch.device
) -> list[tuple[str, Callable[[], MadeUp]]]:
    """Return every model by its name, to be made when it is wanted."""
    first = _EMBEDDED.name, partial(_EMBEDDED.made_up, load.slots, device)
    if embedded_dir is not None:
        first = embedded_dir.name, partial(fetched, embedded_dir, load.slots)
    return [
        first,
        (_LLAMA_70B.name, partial(_LLAMA_70B.made_up, load.slots, device)),
        (kimi_pair.NAME, partial(kimi_pair.made_up, KIMI, load.slots, load.rows, device)),
    ]


def fetched(model_dir: Path, slots: int) -> MadeUp:
    """Return a model that lies on disk, for texts of so many slots."""
    weights = Weights(model_dir, torch.bfloat16)
    model = build_model(model_config(read_config(model_dir)), weights, slots)
    return MadeUp(f"{model_dir.name} as fetched", model, bytes_of(*(weights[n] for n in weights)))


def measured(
    make: Callable[[], MadeUp], load: StepLoad, device: torch.device, capture: Capture
) -> dict[str, Any]:
    """Return how long a step takes both ways, what it launches, and whether both are the same."""
    made = make()
    counting = CountingCapture(capture)
    taken, found = {}, []
    for name, how in (("launched", None), ("replayed", counting)):
        engine = _engine(made.model, load, Place(device, how))
        batch = _prefilled(engine, made.model, load)
        taken[name] = _median_s(engine, batch)
        counting.take()
        found.append([(outcome.verdict, outcome.taps_KX) for outcome in engine.step(batch)])
    launches = counting.take()
    return {
        "name": f"{made.name}, {load.sessions} chains of {load.drafts}",
        **{f"{name}_ms": seconds * 1000 for name, seconds in taken.items()},
        "launches": launches.kernels,
        "graphs": launches.graphs,
        "weights_gb_per_s": made.bytes_read / taken["replayed"] / 1e9,
        "right": all(alike(one, other) for one, other in zip(*found, strict=True)),
    }


def _engine(model: TargetModel, load: StepLoad, place: Place) -> DeviceEngine:
    pages, layers = pages_for(load.slots) * load.sessions, model.config.num_layers
    most = Load(max(2 * _CHUNK, 128), load.sessions, load.slots)
    taps = sorted({0, layers // 2, layers - 1})
    return DeviceEngine(model, taps, pages, most, place)


def _prefilled(engine: DeviceEngine, model: TargetModel, load: StepLoad) -> list[Rows]:
    """Compute the context of every session; return a chain for each."""
    pages, vocabulary = pages_for(load.slots), model.config.vocab_size
    batch = []
    for number in range(load.sessions):
        draw = torch.Generator().manual_seed(number)
        count = load.context + 1 + load.drafts
        tokens = torch.randint(vocabulary, (count,), generator=draw).tolist()
        text, drafts = tokens[: load.context + 1], tokens[load.context + 1 :]
        session = Session("check", text, SamplingParams(temperature=0.0), 100, vocabulary)
        mine = tuple(range(number * pages, (number + 1) * pages))
        batch.append(_chain(engine, session, drafts, mine))
    return batch


def _chain(
    engine: DeviceEngine, session: Session, drafts: Sequence[int], pages: tuple[int, ...]
) -> Rows:
    """Compute all but the last token of a session's text; return that and its drafts."""
    text, context = session.tokens, len(session.tokens) - 1
    while session.cached_len < context - _CHUNK:
        rows = replace(session.next_rows(_CHUNK), pages=pages)
        engine.step([rows])
        session.advance(len(rows.tokens))
    session.tree = DraftTree.chain(len(text), (text[-1], *drafts))
    if rest := context - session.cached_len:
        engine.step([replace(session.next_rows(rest), pages=pages)])
        session.cached_len = context
    return replace(session.next_rows(1), pages=pages)


def _median_s(engine: DeviceEngine, batch: Sequence[Rows]) -> float:
    taken = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        engine.step(batch)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def alike(one: tuple[Any, torch.Tensor], other: tuple[Any, torch.Tensor]) -> bool:
    """Return whether two outcomes are the same, to the bit, but for their times."""
    (said, taps_KX), (said_too, taps_too_KX) = one, other
    same = (said.path, said.tokens, said.logprobs) == (
        said_too.path,
        said_too.tokens,
        said_too.logprobs,
    )
    return same and torch.equal(taps_KX, taps_too_KX)
