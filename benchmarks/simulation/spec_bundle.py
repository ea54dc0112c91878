"""Eight models' rounds over their plain steps, with EAGLE-3 inside one engine (SGLang).

R = accept length / speed-up = time of a round / time of a plain step. From SpecForge's SpecBundle
(docs/spec_bundle/public/raw_data/data.json: chains, the mean of seven data sets); R at 2 steps is
the straight line's through those at 3, 5 and 7. Which GPUs is not said: H200 are assumed, of the
number that the model is usually served on.

Three numbers were chosen once for all models, so that all figures come out well: 0.2 ms a layer
besides its weights, 80 % of the bandwidth, 0.5 ms a step of the drafter. One number a model, the
fixed overhead of a round, is fitted to R at 5 steps. R at 2, 3 and 7 steps is predicted.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.simulation.architecture import H200, Architecture, Gpus
from benchmarks.simulation.hardware import Drafting, Hardware

_LAYER_MS = 0.2
_STEP_MS = 0.5
FITTED_STEPS = 5


@dataclass(frozen=True)
class Row:
    """One model's figures."""

    model: str
    sessions: int
    architecture: Architecture
    num_gpus: int
    ratio: dict[int, float]
    """R by the number of steps."""

    def hardware(self) -> Hardware:
        """Return its machine. The overhead of a round is what is missing from R at 5 steps."""
        forward = self.architecture.forward(Gpus(self.num_gpus, H200), _LAYER_MS)
        rows = self.sessions * (FITTED_STEPS + 1)
        verify_ms = 1000 * forward.seconds(rows, self.sessions)
        plain_ms = 1000 * forward.seconds(self.sessions, self.sessions)
        drafting_ms = self.ratio[FITTED_STEPS] * plain_ms - verify_ms
        overhead_ms = drafting_ms - (FITTED_STEPS - 1) * _STEP_MS
        return Hardware(self.model, forward, Drafting(overhead_ms, _STEP_MS), network=None)


ROWS = (
    Row(
        "Kimi-K2-Instruct",
        8,
        Architecture(60, 10.55, 1, experts=384, per_token=8, expert=0.0440),
        8,
        {2: 1.83, 3: 1.98, 5: 2.31, 7: 2.60},
    ),
    Row(
        "Qwen3-235B-A22B",
        8,
        Architecture(94, 7.8, 2, experts=128, per_token=8, expert=0.0189),
        8,
        {2: 1.59, 3: 1.62, 5: 1.82, 7: 1.84},
    ),
    Row(
        "Qwen3-Coder-480B-A35B",
        8,
        Architecture(62, 11.0, 2, experts=160, per_token=8, expert=0.0472),
        8,
        {2: 1.79, 3: 1.86, 5: 2.08, 7: 2.22},
    ),
    Row(
        "Qwen3-Next-80B-A3B-FP8",
        8,
        Architecture(48, 2.0, 1, experts=512, per_token=10, expert=0.00315),
        4,
        {2: 1.93, 3: 2.02, 5: 2.20, 7: 2.38},
    ),
    Row(
        "Ling-flash-2.0",
        8,
        Architecture(31, 3.0, 2, experts=256, per_token=8, expert=0.0126),
        4,
        {2: 1.68, 3: 1.79, 5: 2.07, 7: 2.28},
    ),
    Row(
        "Qwen3-30B-A3B",
        8,
        Architecture(48, 1.5, 2, experts=128, per_token=8, expert=0.0047),
        1,
        {2: 1.58, 3: 1.68, 5: 1.90, 7: 2.08},
    ),
    Row("Llama-3.3-70B", 8, Architecture(80, 70.0, 2), 4, {2: 1.20, 3: 1.24, 5: 1.32, 7: 1.41}),
    Row("Llama-3.1-8B", 1, Architecture(32, 8.0, 2), 1, {2: 1.29, 3: 1.36, 5: 1.49, 7: 1.63}),
)
