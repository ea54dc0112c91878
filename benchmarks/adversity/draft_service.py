"""A draft service that can go wrong: `python -m benchmarks.adversity.draft_service SWITCH ...`.

It is the real one with the real arguments, but for what becomes of a tree before it is sent. What
the service itself thinks of its drafters, alarms included, does not see that.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from benchmarks.adversity.disturbance import Switch
from draft_service import __main__ as real
from draft_service.server import DraftServicer
from protos import draft_pb2 as pb
from protos import serving
from protos.speculation_pb2 import DraftTree, Plan


def randomize(tree: DraftTree, plan: Plan, vocab_size: int, chance: random.Random) -> None:
    """Replace all drafts by random tokens.

    Prompt lookup often has none; then there are as many as were planned, in a chain. Trees with
    probabilities keep their shape: a drafter is as sure of rubbish as it was of its guesses.
    """
    if not tree.logprobs:
        nodes = max(1, min(plan.steps + 1, plan.draft_tokens))
        tree.parents[:] = range(-1, nodes - 1)
    drafts = (chance.randrange(vocab_size) for _ in tree.parents[1:])
    tree.tokens[:] = [tree.tokens[0], *drafts]


class DisturbedServicer(DraftServicer):
    """DraftService, as the switch will have it."""

    def __init__(self, switch: Switch, *parts: Any) -> None:
        super().__init__(*parts)
        self._switch = switch
        self._chance = random.Random(0)

    async def Draft(  # noqa: N802
        self, requests: AsyncIterator[pb.DraftRequest], context: Any
    ) -> AsyncIterator[pb.DraftResponse]:
        """Serve a session as the real one does; its trees may become worse and later."""
        plan = Plan()
        noted = _note_plans(requests, plan)
        responses = cast(AsyncGenerator[pb.DraftResponse], super().Draft(noted, context))
        async with aclosing(responses):
            async for response in responses:
                if response.WhichOneof("message") == "tree":
                    await self._disturb(response.tree, plan)
                yield response

    async def _disturb(self, tree: DraftTree, plan: Plan) -> None:
        """A drafter that takes longer says so, and is not done with the next tree before."""
        disturbance = self._switch.get()
        if disturbance.random_drafts:
            vocab_size = self._registry.all[0].loaded.pairing.vocab_size
            randomize(tree, plan, vocab_size, self._chance)
        if disturbance.draft_delay_ms:
            tree.timings.grow_us += int(disturbance.draft_delay_ms * 1000)
            await asyncio.sleep(disturbance.draft_delay_ms / 1000)


async def _note_plans(
    requests: AsyncIterator[pb.DraftRequest], plan: Plan
) -> AsyncIterator[pb.DraftRequest]:
    """Pass requests on; `plan` becomes the standing one."""
    async for request in requests:
        is_open = request.WhichOneof("message") == "open"
        plan.CopyFrom(request.open.plan if is_open else request.plan)
        yield request


def main() -> None:
    """Take the path of the switch from the arguments; the rest is for the real service."""
    servicer = partial(DisturbedServicer, Switch(Path(sys.argv.pop(1))))
    with patch.object(real, "DraftServicer", servicer):
        serving.run(real.main)


if __name__ == "__main__":
    main()
