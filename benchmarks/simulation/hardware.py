"""How long things take: a forward of the target, a draft, a hop.

    forward(rows, sessions) = fixed + rows · row + sessions · session + experts touched · expert

A few rows cost hardly more than one: weights are read once for all of them. A mixture of experts is
different. Each row picks its own experts, so a batch reads the more of them the more rows it has
(Huang et al., "MoESD", arXiv 2505.19645). Independent picks are assumed; rows that follow each
other pick more alike, so the real cost of a row is a little lower.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Experts:
    """The routed experts of a model: each row picks `per_token` of `count` in every layer."""

    count: int
    per_token: int
    stream_ms: float
    """Reading one expert of every layer, on all GPUs together."""

    def touched(self, rows: int) -> float:
        """Return how many experts of a layer are read for so many rows, on average."""
        return self.count * (1 - (1 - self.per_token / self.count) ** rows)


@dataclass(frozen=True)
class Forward:
    """What a step of the target costs."""

    fixed_ms: float
    """Launches, all-reduces, and the weights that every row needs."""
    row_ms: float
    """Arithmetic of a row."""
    session_ms: float = 0.0
    """Reading the KV cache of a session."""
    accept_ms: float = 0.1
    """Choosing tokens and walking the trees; part of `fixed_ms`."""
    experts: Experts | None = None

    def seconds(self, rows: int, sessions: int) -> float:
        """Return the time of a step in seconds."""
        routed_ms = self.experts.touched(rows) * self.experts.stream_ms if self.experts else 0.0
        dense_ms = self.fixed_ms + rows * self.row_ms + sessions * self.session_ms
        return (dense_ms + routed_ms) / 1000


@dataclass(frozen=True)
class Drafting:
    """What a batch of drafts costs."""

    extend_ms: float
    """Rows with real taps, up to the root's children; in one engine all else that a round adds."""
    step_ms: float
    """Each further level of the trees."""
    row_ms: float = 0.0
    """One more row in any of these."""
    gather_ms: float = 0.4
    """How long a batch waits, after the first to come, for those who shared the last one."""

    def extend_s(self, rows: int) -> float:
        """Return the time to take in committed rows, in seconds."""
        return (self.extend_ms + rows * self.row_ms) / 1000

    def grow_s(self, steps: int, rows: int) -> float:
        """Return the time to grow trees of so many levels with so many rows, in seconds."""
        return (max(steps - 1, 0) * self.step_ms + rows * self.row_ms) / 1000


@dataclass(frozen=True)
class Network:
    """What lies between gateway, target and drafter."""

    rtt_ms: float = 0.4
    """There and back, with serialization: 0.2 to 0.45 was measured for gRPC on one machine."""
    gbit_s: float = 25.0
    tap_bytes: int = 43_008
    """Of one token: three layers of Kimi-K2.5 in bf16."""
    jitter: float = 0.2
    """Spread of the logarithm of a hop's time."""

    def hop_s(self, tap_rows: int, rng: random.Random) -> float:
        """Return the time of a message with so many rows of taps, in seconds."""
        latency_s = self.rtt_ms / 2000 * math.exp(rng.gauss(0.0, self.jitter))
        return latency_s + tap_rows * self.tap_bytes * 8 / (self.gbit_s * 1e9)


@dataclass(frozen=True)
class Hardware:
    """A target, what drafts for it, and how they are laid out."""

    name: str
    target: Forward
    drafter: Drafting
    network: Network | None
    """None: both in one engine, on the same GPUs, one after the other."""

    def plain_s(self, sessions: int) -> float:
        """Return the time of a plain step of so many sessions, in seconds."""
        return self.target.seconds(sessions, sessions)
