"""A local stack of real processes in which things go wrong on demand."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import grpc

from benchmarks.adversity.disturbance import Switch
from benchmarks.adversity.scenario import Phase
from slipstream.probe import list_drafters
from slipstream.stack import Addresses, LocalStack, StackConfig, StackError

# Prompts are not what is measured: thirty-two that come at once are soon behind.
_QUICK_PROMPTS = ("--prefill-chunk", "128")
_POLL_S = 0.05
_DRAFTER_TIMEOUT_S = 60.0


class Stage:
    """The stack, the address of a second gateway, and the switch that the services look at.

    Gateways learn from all that they answer. The second one answers auto only, so that auto knows
    nothing but what it found out itself.
    """

    def __init__(self, stack: LocalStack, auto_gateway: str, switch: Switch) -> None:
        self.stack = stack
        self.auto_gateway = auto_gateway
        self._switch = switch
        self._drafter_lives = True

    def enter(self, phase: Phase) -> None:
        """Make the services as the phase has them. No request may be under way.

        Raises StackError if the drafter does not come back.
        """
        self._switch.set(phase.disturbance)
        if phase.drafter_lives and not self._drafter_lives:
            self._bring_the_drafter_back()
        elif self._drafter_lives and not phase.drafter_lives:
            self.stack.processes["draft"].kill()
            self.stack.processes["draft"].wait()
        self._drafter_lives = phase.drafter_lives

    def _bring_the_drafter_back(self) -> None:
        """It is back when it has loaded its drafters."""
        self.stack.spawn("draft")
        self.stack.wait_healthy("draft")
        deadline = time.monotonic() + _DRAFTER_TIMEOUT_S
        while not self._has_drafters():
            if time.monotonic() > deadline:
                raise StackError(f"no drafters {_DRAFTER_TIMEOUT_S:.0f} s after the restart")
            time.sleep(_POLL_S)

    def _has_drafters(self) -> bool:
        """Whether any are loaded; not if the service is too busy to say."""
        with contextlib.suppress(grpc.RpcError):
            return bool(list_drafters(self.stack.addresses.draft).drafters)
        return False


@contextlib.contextmanager
def open_stage(model: Path, drafters: Sequence[str], weights: str) -> Iterator[Stage]:
    """Start the services with those that can go wrong among them; stop them in the end."""
    with tempfile.TemporaryDirectory(prefix="slipstream-") as directory:
        path = Path(directory) / "switch.json"
        stand_ins = {
            "target": ("benchmarks.adversity.target_service", str(path)),
            "draft": ("benchmarks.adversity.draft_service", str(path)),
        }
        config = StackConfig(
            model,
            Addresses.free(),
            drafters,
            target_args=("--weights", weights, *_QUICK_PROMPTS),
            stand_ins=stand_ins,
        )
        second = replace(config.addresses, gateway=Addresses.free().gateway)
        beside = replace(config, addresses=second, services=("gateway",))
        with LocalStack(config) as stack, LocalStack(beside):
            yield Stage(stack, second.gateway, Switch(path))
