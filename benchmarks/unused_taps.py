"""What a target that could serve drafters costs those who use none.

Two engines on the same weights, one tapped as usual and one not at all, take turns with the same
step: every session decodes one token plainly. In one process, so that both have the same weights in
the same memory. `python -m benchmarks.unused_taps` prints JSON: the ratio of every pair of steps,
its median with a 95 % interval, by the number of sessions.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.intervals import median_of
from kernels import native
from protos.messages import DraftTree, SamplingParams
from slipstream.model_cache import resolve_model
from target_service.engine import Engine
from target_service.kv_memory import PAGE_LEN
from target_service.models import build_model, model_config
from target_service.models.target_model import TargetModel
from target_service.session import Rows, Session
from target_service.weights import Weights, read_config

SESSIONS = (1, 8, 32)
_CONTEXT = 4 * PAGE_LEN - 8
_PAGES_EACH = 4
_PAIRS = 300
_WARM_UP = 10


@dataclass(frozen=True)
class Steps:
    """An engine, and a step of plain sessions that can be taken again and again."""

    engine: Engine
    batch: Sequence[Rows]

    @classmethod
    def prepare(cls, model: TargetModel, tap_layers: Sequence[int], sessions: int) -> Steps:
        """Fill the cache with a text a session."""
        engine = Engine(model, tap_layers, sessions * _PAGES_EACH)
        batch = [_last_token(engine, model.config.vocab_size, number) for number in range(sessions)]
        return cls(engine, batch)

    def take_s(self) -> float:
        """Take the step; return its time in seconds."""
        started = time.perf_counter()
        self.engine.step(self.batch)
        return time.perf_counter() - started


def _last_token(engine: Engine, vocab_size: int, number: int) -> Rows:
    """Compute all but the last token of a session's text; return the step of that."""
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(vocab_size, (_CONTEXT,), generator=generator).tolist()
    session = Session(f"bench-{number}", tokens, SamplingParams(temperature=0.0), 100, vocab_size)
    pages = tuple(range(number * _PAGES_EACH, (number + 1) * _PAGES_EACH))
    rows = replace(session.next_rows(_CONTEXT), pages=pages)
    engine.step([rows])
    session.cached_len = _CONTEXT - 1
    session.tree = DraftTree.plain(_CONTEXT, tokens[-1])
    return replace(session.next_rows(1), pages=pages)


def measure(
    model: TargetModel, tap_layers: Sequence[int], sessions: int, pairs: int
) -> dict[str, Any]:
    """Return tapped over untapped steps, in pairs that begin with either in turn."""
    arms = [Steps.prepare(model, layers, sessions) for layers in (tap_layers, ())]
    ratios = []
    for number in range(_WARM_UP + pairs):
        order = arms if number % 2 else arms[::-1]
        taken = {id(arm): arm.take_s() for arm in order}
        ratios.append(taken[id(arms[0])] / taken[id(arms[1])])
    ratio = median_of(ratios[_WARM_UP:])
    return {"sessions": sessions, "pairs": pairs, **ratio.as_json("tapped_over_untapped")}


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--pairs", type=int, default=_PAIRS)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    native.enable(options.threads)
    model_dir = resolve_model(options.model)
    config = model_config(read_config(model_dir))
    model = build_model(config, Weights(model_dir, torch.bfloat16), 2 * _CONTEXT)
    taps = (2, config.num_layers // 2, config.num_layers - 3, config.num_layers)
    with torch.inference_mode():
        found = [measure(model, taps, count, options.pairs) for count in SESSIONS]
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
