"""How near to the speed of memory the native kernels run.

    read        a huge-page buffer as large as the packed weights, read once
    products    all matrix products of a step, the same kernels with nothing between
    step        a whole step of the target's engine, context 256
    reference   the same step on the reference kernels, before the others: they cannot take turns

All in one run, the first three in turn, medians. `python -m benchmarks.kernels` prints JSON;
`--weights int8` and `--model` choose what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from kernels import native
from kernels.normed_linear import NormedLinear
from protos.messages import DraftTree, SamplingParams
from slipstream.model_cache import resolve_model
from target_service.engine import Engine
from target_service.kv_memory import PAGE_LEN
from target_service.models.llama import Llama, LlamaConfig
from target_service.session import Session
from target_service.weights import Weights, read_config

CONTEXT = 256
ROWS = (1, 2, 4, 8, 16, 32)
_SLOTS = 512
_PAGES = tuple(range(_SLOTS // PAGE_LEN))
_REFERENCE_ROWS = (1, 8)
_REPEATS = 40

Work = Callable[[], object]


def medians_ms(works: dict[str, Work]) -> dict[str, float]:
    """Return the median time of each, taken in turn."""
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(_REPEATS):
        for name, work in works.items():
            started = time.perf_counter()
            work()
            taken[name].append(time.perf_counter() - started)
    return {name: statistics.median(times) * 1000 for name, times in taken.items()}


@dataclass
class Steps:
    """An engine and a session that stays at its context, however often it is verified."""

    engine: Engine

    @classmethod
    def prepare(cls, model: Llama) -> Steps:
        """Fill the cache with a random text."""
        depth = model.config.num_layers
        taps = sorted({min(2, depth - 1), depth // 2, max(depth - 3, 0)})
        steps = cls(Engine(model, taps, len(_PAGES)))
        session = steps._session(model.config.vocab_size)
        while session.cached_len < CONTEXT - 1:
            rows = replace(session.next_rows(64), pages=_PAGES)
            steps.engine.step([rows])
            if rows.root is not None:
                break
            session.advance(len(rows.tokens))
        return steps

    def work(self, vocab_size: int, rows: int) -> Work:
        """Return a step that verifies a chain of so many rows after the context."""
        session = self._session(vocab_size)
        session.cached_len = CONTEXT - 1
        tokens = (session.tokens[-1], *range(1, rows))
        session.tree = DraftTree.chain(CONTEXT, tokens)
        batch = [replace(session.next_rows(1), pages=_PAGES)]
        return lambda: self.engine.step(batch)

    @staticmethod
    def _session(vocab_size: int) -> Session:
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(vocab_size, (CONTEXT,), generator=generator).tolist()
        return Session("bench", tokens, SamplingParams(temperature=0.0), 100, vocab_size)


def measure_reference(model: Llama) -> dict[int, float]:
    """Return the time of a step on the reference kernels, which must be in use, by rows, in ms."""
    steps, vocab_size = Steps.prepare(model), model.config.vocab_size
    works = {str(rows): steps.work(vocab_size, rows) for rows in _REFERENCE_ROWS}
    return {int(rows): ms for rows, ms in medians_ms(works).items()}


def measure(model: Llama) -> list[dict[str, Any]]:
    """Return a line for every number of rows."""
    stack, head = model.stack.packed, model.head.packed[0]
    weight_bytes = torch.ops.slipstream.multiply_all(stack, head, 1)
    steps = Steps.prepare(model)
    lines = []
    for rows in ROWS:
        products = _products(stack, head, rows)
        works: dict[str, Work] = {
            "read": lambda: torch.ops.slipstream.read_memory(weight_bytes),
            "products": products,
            "step": steps.work(model.config.vocab_size, rows),
        }
        taken = medians_ms(works)
        lines.append(_line(rows, weight_bytes, taken))
    return lines


def _products(stack: Any, head: Any, rows: int) -> Work:
    return lambda: torch.ops.slipstream.multiply_all(stack, head, rows)


def _line(rows: int, weight_bytes: int, taken_ms: dict[str, float]) -> dict[str, Any]:
    read_ms, products_ms, step_ms = taken_ms["read"], taken_ms["products"], taken_ms["step"]
    return {
        "rows": rows,
        **{f"{name}_ms": round(ms, 3) for name, ms in taken_ms.items()},
        "read_gb_per_s": round(weight_bytes / read_ms / 1e6, 1),
        "products_over_read": round(products_ms / read_ms, 3),
        "step_over_products": round(step_ms / products_ms, 3),
    }


def measure_linears(model: Llama) -> list[dict[str, Any]]:
    """Return GB/s of every kind of linear layer alone, and its share of what reading reaches."""
    layer = model.stack.layers[0]
    kinds = {"q": layer.q, "o": layer.o, "gate": layer.gate, "down": layer.down}
    kinds["head"] = model.head.linear
    lines = []
    for name, linear in kinds.items():
        packed = NormedLinear(linear)
        for rows in ROWS:
            lines.append({"op": name, "rows": rows} | _linear_line(packed, rows))
    return lines


def _linear_line(layer: NormedLinear, rows: int) -> dict[str, Any]:
    weight = layer.packed[0]
    num_bytes = torch.ops.slipstream.multiply_one(weight, rows)
    taken = medians_ms(
        {
            "read": lambda: torch.ops.slipstream.read_memory(num_bytes),
            "op": lambda: torch.ops.slipstream.multiply_one(weight, rows),
        }
    )
    return {
        "ms": round(taken["op"], 4),
        "gb_per_s": round(num_bytes / taken["op"] / 1e6, 1),
        "share_of_read": round(taken["read"] / taken["op"], 2),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--weights", default="bf16", choices=("bf16", "int8", "int4"))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--ops", action="store_true", help="every kind of linear layer alone, too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    path = resolve_model(options.model)
    config = LlamaConfig.from_json(read_config(path))
    weights = Weights(path, torch.bfloat16)
    with torch.inference_mode():
        reference_ms = measure_reference(Llama(config, weights, _SLOTS))
    isa = native.enable(options.threads)
    kept_as = "dense" if options.weights == "bf16" else options.weights
    model = Llama(config, weights, _SLOTS, kept_as)
    with torch.inference_mode():
        report: dict[str, Any] = {
            "what": "native kernels against the speed of memory, one run, medians",
            "isa": isa,
            "threads": options.threads,
            "weights": options.weights,
            "context": CONTEXT,
            "bf16_reference_step_ms": {rows: round(ms, 1) for rows, ms in reference_ms.items()},
            "steps": measure(model),
        }
        if options.ops:
            report["linears"] = measure_linears(model)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
