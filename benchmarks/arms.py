"""The ways to decode that a benchmark compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protos.messages import MAX_TREE_NODES, Plan
from slipstream.generate import Options

SIX_TASKS = Path(__file__).parent / "prompts" / "six_tasks.jsonl"
"""Ten prompts each of chat, code, maths, summary, copy-editing and multi-turn conversation."""

# Any seed does: what counts is that all arms have the same.
_SEED = 0


@dataclass(frozen=True)
class Arm:
    """Plain decoding, a fixed tree, or what the gateway decides by itself."""

    name: str
    mode: str
    plan: Plan | None = None
    temperature: float = 0.0

    @classmethod
    def fixed(cls, plan: Plan, temperature: float = 0.0) -> Arm:
        """Return the arm of a fixed tree, named as `parse_plan` reads it."""
        return cls(f"{plan.steps}x{plan.top_k}x{plan.draft_tokens}", "fixed", plan, temperature)

    def options(self, wish: Wish) -> Options:
        """Return how an answer is asked for."""
        speculation: dict[str, Any] = {} if self.mode == "off" else wish.speculation
        if self.plan is not None:
            speculation |= vars(self.plan)
        return Options(
            sampling={"temperature": self.temperature, "seed": _SEED},
            # Forced drafts may hit upon a stop token anywhere.
            stopping={"max_new_tokens": wish.max_new_tokens, "ignore_eos": wish.simulates},
            speculation=speculation,
            mode=self.mode,
        )


PLAIN = Arm("plain", "off")
AUTO = Arm("auto", "auto")


@dataclass(frozen=True)
class Wish:
    """What all answers of a benchmark have in common. No drafter: the draft service's default."""

    max_new_tokens: int
    drafter: str = ""
    forced_accept_length: float | None = None

    @property
    def simulates(self) -> bool:
        """Whether drafts are accepted that the target would not have chosen."""
        return self.forced_accept_length is not None

    @property
    def speculation(self) -> dict[str, Any]:
        """The fields of Speculation that do not depend on the arm."""
        return {"drafter_id": self.drafter, "forced_accept_length": self.forced_accept_length}


def parse_plan(text: str) -> Plan:
    """Return the plan of STEPSxTOP_KxDRAFT_TOKENS. Raises ValueError naming what is wrong."""
    parts = text.split("x")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise ValueError(f"a fixed arm is STEPSxTOP_KxDRAFT_TOKENS, as 3x1x4, got {text!r}")
    return Plan(*map(int, parts))


def plan_of(steps: int, top_k: int, draft_tokens: int | None) -> Plan:
    """Return a plan; without draft_tokens a chain has all its nodes, a tree the most it may."""
    return Plan(steps, top_k, draft_tokens or (steps + 1 if top_k == 1 else MAX_TREE_NODES))


def arm_of(mode: str, plan: Plan) -> Arm:
    """Return the arm of a mode, a fixed one of this plan. Raises ValueError for an unknown one."""
    arms = {"off": PLAIN, "fixed": Arm.fixed(plan), "auto": AUTO}
    if mode not in arms:
        raise ValueError(f"mode must be one of {', '.join(arms)}, got {mode!r}")
    return arms[mode]


def fixed_arms(plans: Sequence[Plan]) -> list[Arm]:
    """Return an arm for every plan, in order, each once."""
    return [Arm.fixed(plan) for plan in dict.fromkeys(plans)]
