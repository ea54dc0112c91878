"""A simulated stack: sessions at a gateway, a target, drafters, and the network between them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.simulation.acceptance import Acceptance
from benchmarks.simulation.clock import Clock, Machine
from benchmarks.simulation.drafter import Drafter
from benchmarks.simulation.guesses import Guesser
from benchmarks.simulation.hardware import Hardware
from benchmarks.simulation.link import Link
from benchmarks.simulation.session import Session
from benchmarks.simulation.target import Target
from gateway.policy import Policy

Policies = Callable[[], Policy]
"""Gives every session its policy; one gateway's, so they are made anew for each stack."""

# The gateway's --draft-deadline-ms. One engine waits for its own drafter as long as it takes.
_DEADLINE_S = 0.05
_ENDLESS_S = 1e6


@dataclass(frozen=True)
class Load:
    """What is asked of a stack."""

    acceptance: Acceptance
    sessions: int = 1
    drafters: int = 1
    seed: int = 0
    jitter: float = 0.02
    """Spread of a step's time, as a share of it."""


@dataclass(frozen=True)
class Outcome:
    """What came of it, after the warm-up."""

    tokens_per_second: float
    """Of one session, on average."""
    total_tokens_per_second: float
    accept_length: float
    round_ms: float
    """Time a verify round, or a plain step, of one session."""
    drafter_busy: float
    """Share of the time in which a drafter's machine worked, on average."""
    target_busy: float


class Stack:
    """Everything wired together, at time 0."""

    def __init__(self, hardware: Hardware, load: Load, policies: Policies) -> None:
        self.clock = Clock()
        self.guessers: list[Guesser] = []
        """One a session. Their acceptance may be changed while time passes."""
        self._network = hardware.network
        self._rng = random.Random(load.seed)
        machine = Machine(self.clock)
        self.drafters = [self._drafter(hardware, machine) for _ in range(load.drafters)]
        self.target = Target(self.clock, machine, hardware.target, self._rng, load.jitter)
        self._target_machine = machine
        self.sessions = [self._open(number, load, policies()) for number in range(load.sessions)]

    def hop(self, deliver: Callable[[], None], tap_rows: int = 0) -> None:
        """Let something arrive elsewhere, with so many rows of taps."""
        network = self._network
        self.clock.after(network.hop_s(tap_rows, self._rng) if network else 0.0, deliver)

    def busy_s(self) -> tuple[float, float]:
        """Return how long the target and, on average, the drafters have worked."""
        drafting = [machine.busy_s[drafter] for drafter, machine in self.drafters]
        return self._target_machine.busy_s[self.target], sum(drafting) / len(drafting)

    def _drafter(self, hardware: Hardware, target_machine: Machine) -> tuple[Drafter, Machine]:
        machine = Machine(self.clock) if self._network else target_machine
        return Drafter(self.clock, machine, hardware.drafter), machine

    def _open(self, number: int, load: Load, policy: Policy) -> Session:
        guesser = Guesser(load.acceptance, random.Random(f"{load.seed} {number}"))
        self.guessers.append(guesser)
        drafter, _ = self.drafters[number % len(self.drafters)]
        link = Link(self.hop, self.target, drafter, guesser)
        deadline_s = _DEADLINE_S if self._network else _ENDLESS_S
        link.open(Session(self.clock, policy, link, deadline_s))
        return link.session


def simulate(hardware: Hardware, load: Load, policies: Policies, *, plain_steps: int) -> Outcome:
    """Run a stack for the time of so many plain steps, a third of them before it is measured."""
    stack = Stack(hardware, load, policies)
    span_s = plain_steps * hardware.plain_s(load.sessions)
    stack.clock.run_until(span_s / 3)
    before = _Counts.of(stack)
    stack.clock.run_until(span_s)
    return _Counts.of(stack).since(before, load.sessions)


@dataclass(frozen=True)
class _Counts:
    """What has been done up to a moment."""

    now: float
    tokens: int
    rounds: int
    target_s: float
    drafter_s: float

    @classmethod
    def of(cls, stack: Stack) -> _Counts:
        rounds = sum(session.rounds.statistics.rounds for session in stack.sessions)
        tokens = sum(session.rounds.committed_len for session in stack.sessions)
        return cls(stack.clock.now, tokens, rounds, *stack.busy_s())

    def since(self, before: _Counts, sessions: int) -> Outcome:
        span_s = self.now - before.now
        rounds, total = self.rounds - before.rounds, (self.tokens - before.tokens) / span_s
        return Outcome(
            tokens_per_second=total / sessions,
            total_tokens_per_second=total,
            accept_length=(self.tokens - before.tokens) / max(rounds, 1),
            round_ms=1000 * span_s * sessions / max(rounds, 1),
            drafter_busy=(self.drafter_s - before.drafter_s) / span_s,
            target_busy=(self.target_s - before.target_s) / span_s,
        )
