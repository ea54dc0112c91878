"""Made-up timelines: arms of known speed."""

from __future__ import annotations

import random

from benchmarks.adversity.cycle import Cycle, Run

TOKENS = 100


def run(rate: float, rounds: float = 50, tokens: int = TOKENS) -> Run:
    return Run(tokens, tokens / rate, rounds)


def cycle(phase: int = 0, *, rounds: float = 50, **rates: float) -> Cycle:
    """A cycle in which every arm has that rate."""
    return Cycle(phase, {arm: run(rate, rounds) for arm, rate in rates.items()})


def noisy_cycles(count: int, noise: float, **rates: float) -> list[Cycle]:
    """Cycles in which the machine is slow or fast for all arms alike, and each strays a little."""
    chance = random.Random(1)
    cycles = []
    for _ in range(count):
        machine = chance.uniform(0.3, 1.0)
        strayed = {
            arm: rate * machine * chance.uniform(1 - noise, 1 + noise)
            for arm, rate in rates.items()
        }
        cycles.append(cycle(**strayed))
    return cycles
