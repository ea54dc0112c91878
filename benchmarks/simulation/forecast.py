"""What speculation brings on given hardware at given loads, and how many drafters it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.simulation.acceptance import Acceptance
from benchmarks.simulation.hardware import Hardware
from benchmarks.simulation.stack import Load, Outcome, Policies, simulate
from gateway.experience import Experience
from gateway.plans import CHAINS as CHAIN_PLANS
from gateway.plans import NO_DRAFTS, NO_LIMIT
from gateway.policy import Wish, policy_for
from protos.messages import Plan

CHAINS = tuple(plan.steps for plan in CHAIN_PLANS)
# A drafter that is busier lets sessions wait for each other.
BUSY_ENOUGH = 0.7
# Plain steps simulated: few sessions need more for the same number of rounds. Auto learns first.
_STEPS_OF_ALL_SESSIONS = 2400
_LEAST_STEPS = 90
_AUTO_FACTOR = 2


@dataclass(frozen=True)
class Forecast:
    """One load: plain decoding, chains of fixed numbers of steps, and the gateway's own policy."""

    sessions: int
    plain: Outcome
    fixed: dict[int, Outcome]
    auto: Outcome
    drafters: float
    """Drafters a target for the gateway's policy, each busy for 70 % of the time."""

    @property
    def best_steps(self) -> int:
        """The fixed number of steps that is fastest."""
        return max(self.fixed, key=lambda steps: self.fixed[steps].tokens_per_second)

    @property
    def best(self) -> Outcome:
        """What the fastest fixed number of steps comes to."""
        return self.fixed[self.best_steps]

    def gain(self, outcome: Outcome) -> float:
        """Return how much faster than plain decoding an outcome is; 0.5 is half as fast again."""
        return outcome.tokens_per_second / self.plain.tokens_per_second - 1


def plain_policies() -> Policies:
    """Decode plainly, without a drafter."""
    return _policies(Wish("off", NO_DRAFTS))


def fixed_policies(steps: int, top_k: int = 1, draft_tokens: int | None = None) -> Policies:
    """Ask for the same tree in every round; without `draft_tokens` it has a node a step."""
    return _policies(Wish("fixed", Plan(steps, top_k, draft_tokens or steps + 1)))


def auto_policies() -> Policies:
    """Decide as the gateway does by default."""
    return _policies(Wish("auto", NO_LIMIT))


def _policies(wish: Wish) -> Policies:
    """Return the policies of the sessions of one gateway, which learn together."""
    experience = Experience()
    return lambda: policy_for(wish, experience, "")


def forecast(hardware: Hardware, acceptance: Acceptance, sessions: int, seed: int = 0) -> Forecast:
    """Simulate one load in all ways."""
    load = Load(acceptance, sessions, seed=seed)

    plain_steps = max(_STEPS_OF_ALL_SESSIONS // sessions, _LEAST_STEPS)

    def run(policies: Policies) -> Outcome:
        return simulate(hardware, load, policies, plain_steps=plain_steps)

    plain = run(plain_policies())
    fixed = {steps: run(fixed_policies(steps)) for steps in CHAINS}
    auto, drafters = with_enough_drafters(hardware, load, auto_policies, _AUTO_FACTOR * plain_steps)
    return Forecast(sessions, plain, fixed, auto, drafters)


def with_enough_drafters(
    hardware: Hardware, load: Load, policies: Callable[[], Policies], plain_steps: int
) -> tuple[Outcome, float]:
    """Add drafters until none is too busy. Returns what comes of it, and how many that takes."""
    while True:
        found = simulate(hardware, load, policies(), plain_steps=plain_steps)
        if found.drafter_busy <= BUSY_ENOUGH or load.drafters >= load.sessions:
            return found, load.drafters * found.drafter_busy / BUSY_ENOUGH
        load = replace(load, drafters=load.drafters + 1)


def forecasts(
    hardware: Hardware, acceptance: Acceptance, loads: Sequence[int], seed: int = 0
) -> list[Forecast]:
    """Simulate several loads."""
    return [forecast(hardware, acceptance, sessions, seed) for sessions in loads]
