"""The target's step on a device: launched one by one and replayed, with the same outcome.

Models are made up: what a step takes does not depend on what its weights are.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from kernels.gpu.graphs import capture_on
from kernels.rotary import Rope
from protos.messages import DraftTree, SamplingParams
from target_service.device_engine import DeviceEngine, Load
from target_service.kv_memory import pages_for
from target_service.models.llama import Llama, LlamaConfig
from target_service.session import SPARE_SLOTS, Rows, Session
from target_service.weights import Weights

_REPEATS = 20
_CHUNK = 64
_SPREAD = 0.02
"""Of random weights."""


@dataclass(frozen=True)
class StepShape:
    """A model, and the sessions that verify chains of drafts behind a context."""

    name: str
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    sessions: int = 8
    context: int = 512
    drafts: int = 3

    @property
    def config(self) -> LlamaConfig:
        """What a config.json of such a model would say."""
        slots = self.session_slots
        return LlamaConfig(
            hidden_size=self.hidden,
            num_layers=self.layers,
            num_heads=self.heads,
            num_kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            vocab_size=self.vocabulary,
            rms_norm_eps=1e-5,
            tied_head=True,
            max_context_len=slots,
            rope=Rope(self.head_dim, 1e4, {}, slots),
        )

    @property
    def session_slots(self) -> int:
        return self.context + SPARE_SLOTS


SHAPES = (
    StepShape("SmolLM2-135M", 576, 1536, 30, 9, 3, 64, 49152),
    StepShape("two layers of Llama-70B", 8192, 28672, 2, 64, 8, 128, 128256),
)


def measured(shape: StepShape, device: torch.device) -> dict[str, Any]:
    """Return how long a step takes both ways, and whether both found out the same."""
    weights = dict(_made_up(shape, device))
    model = Llama(shape.config, cast(Weights, weights), shape.session_slots)
    taken, found = {}, []
    for name, graphs in (("launched", False), ("replayed", True)):
        engine = _engine(model, shape, device, graphs=graphs)
        batch = _prefilled(engine, shape)
        found.append([(outcome.verdict, outcome.taps_KX) for outcome in engine.step(batch)])
        taken[name] = _median_s(engine, batch)
    weight_bytes = sum(x.numel() * x.element_size() for x in weights.values())
    return {
        "name": f"{shape.name}, {shape.sessions} chains of {shape.drafts}",
        **{f"{name}_ms": seconds * 1000 for name, seconds in taken.items()},
        "weights_gb_per_s": weight_bytes / taken["replayed"] / 1e9,
        "right": all(alike(one, other) for one, other in zip(*found, strict=True)),
    }


def _made_up(shape: StepShape, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a checkpoint."""
    torch.manual_seed(0)

    def matrix(outputs: int, inputs: int) -> torch.Tensor:
        return (_SPREAD * torch.randn(outputs, inputs, device=device)).bfloat16()

    hidden, attended = shape.hidden, shape.heads * shape.head_dim
    kept = shape.kv_heads * shape.head_dim
    ones_H = torch.ones(hidden, dtype=torch.bfloat16, device=device)
    yield "model.embed_tokens.weight", matrix(shape.vocabulary, hidden)
    yield "model.norm.weight", ones_H
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        for name, outputs in (("q", attended), ("k", kept), ("v", kept)):
            yield f"{prefix}.self_attn.{name}_proj.weight", matrix(outputs, hidden)
        yield f"{prefix}.self_attn.o_proj.weight", matrix(hidden, attended)
        for name in ("gate", "up"):
            yield f"{prefix}.mlp.{name}_proj.weight", matrix(shape.inner, hidden)
        yield f"{prefix}.mlp.down_proj.weight", matrix(hidden, shape.inner)
        for name in ("input", "post_attention"):
            yield f"{prefix}.{name}_layernorm.weight", ones_H


def _engine(model: Llama, shape: StepShape, device: torch.device, *, graphs: bool) -> DeviceEngine:
    pages = pages_for(shape.session_slots) * shape.sessions
    load = Load(max(2 * _CHUNK, 128), shape.sessions, shape.session_slots)
    taps = sorted({0, shape.layers // 2, shape.layers - 1})
    return DeviceEngine(model, taps, pages, load, device, capture_on(device, enabled=graphs))


def _prefilled(engine: DeviceEngine, shape: StepShape) -> list[Rows]:
    """Compute the context of every session; return a chain for each."""
    pages = pages_for(shape.session_slots)
    batch = []
    for number in range(shape.sessions):
        draw = torch.Generator().manual_seed(number)
        count = shape.context + 1 + shape.drafts
        tokens = torch.randint(shape.vocabulary, (count,), generator=draw).tolist()
        mine = tuple(range(number * pages, (number + 1) * pages))
        batch.append(_chain(engine, shape, tokens, mine))
    return batch


def _chain(
    engine: DeviceEngine, shape: StepShape, tokens: Sequence[int], pages: tuple[int, ...]
) -> Rows:
    text, drafts = list(tokens[: shape.context + 1]), tokens[shape.context + 1 :]
    sampling = SamplingParams(temperature=0.0)
    session = Session("check", text, sampling, 100, shape.vocabulary)
    while session.cached_len < shape.context - _CHUNK:
        rows = replace(session.next_rows(_CHUNK), pages=pages)
        engine.step([rows])
        session.advance(len(rows.tokens))
    session.tree = DraftTree.chain(len(text), (text[-1], *drafts))
    if rest := shape.context - session.cached_len:
        engine.step([replace(session.next_rows(rest), pages=pages)])
        session.cached_len = shape.context
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
