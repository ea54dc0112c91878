"""Draft services of every kind: honest, wrong, silent, dying. None of them may change an answer."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from protos import draft_pb2 as pb
from protos import draft_pb2_grpc, speculation_pb2
from protos.messages import DraftTree, Plan
from tests.gateway.rule_target import RuleTarget
from tests.gateway.scripted_target import ScriptedTarget
from tests.loopback import listening

OPENED = pb.DraftResponse(opened=pb.DraftOpened(drafter_id="scripted"))

# Gets the rule, the tokens after each commit and the context of the call.
Script = Callable[[RuleTarget, AsyncIterator[list[int]], Any], AsyncIterator[pb.DraftResponse]]


class ScriptedDrafter(draft_pb2_grpc.DraftServiceServicer):
    """Follows the commits of a scripted target, and drafts as its script says."""

    def __init__(self, script: Script, target: ScriptedTarget) -> None:
        self._script = script
        self._target = target
        self.opened: list[pb.OpenDraft] = []
        self.plans: list[Plan] = []
        self.num_sessions = 0

    async def ListDrafters(  # noqa: N802
        self, request: pb.ListDraftersRequest, context: Any
    ) -> pb.ListDraftersResponse:
        """List a drafter that fits, and one that does not."""
        fits, refused = (pb.DrafterInfo(drafter_id=name) for name in ("scripted", "refused"))
        refused.refusal = "it is refused"
        return pb.ListDraftersResponse(drafters=[fits, refused], default_drafter_id="scripted")

    async def Draft(  # noqa: N802
        self, requests: AsyncIterator[pb.DraftRequest], context: Any
    ) -> AsyncIterator[pb.DraftResponse]:
        """Follow the script."""
        opened = (await anext(aiter(requests))).open
        self.opened.append(opened)
        self.num_sessions += 1
        reading = asyncio.create_task(self._read_plans(requests))
        try:
            commits = self._commits(opened.session_id)
            async for response in self._script(self._target.rule, commits, context):
                yield response
        finally:
            reading.cancel()
            self.num_sessions -= 1

    async def _read_plans(self, requests: AsyncIterator[pb.DraftRequest]) -> None:
        async for request in requests:
            self.plans.append(Plan.from_proto(request.plan))

    async def _commits(self, session_id: str) -> AsyncIterator[list[int]]:
        while True:
            yield await self._target.commits[session_id].get()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Yield the address it serves on; it dies at the end."""

        def add(server: Any) -> None:
            draft_pb2_grpc.add_DraftServiceServicer_to_server(self, server)

        async with listening(add) as address:
            yield address


def response(tree: DraftTree) -> pb.DraftResponse:
    return pb.DraftResponse(tree=tree.to_proto())


def right(rule: RuleTarget, tokens: list[int], depth: int = 3) -> DraftTree:
    """Return a chain that the target will accept whole."""
    return DraftTree.chain(len(tokens), tuple(rule.continued(tokens, depth)[len(tokens) - 1 :]))


def drafting(make: Callable[[RuleTarget, list[int]], DraftTree]) -> Script:
    """Return a script that sends one tree for every commit."""

    async def script(
        rule: RuleTarget, commits: AsyncIterator[list[int]], context: Any
    ) -> AsyncIterator[pb.DraftResponse]:
        yield OPENED
        async for tokens in commits:
            yield response(make(rule, tokens))

    return script


def half_right(rule: RuleTarget, tokens: list[int]) -> DraftTree:
    """Return a tree whose first guess is right and whose others are not."""
    first, second = rule.continued(tokens, 2)[-2:]
    wrong = (second + 1) % rule.vocab_size
    return DraftTree(len(tokens), (tokens[-1], wrong, first, wrong), (-1, 0, 0, 2))


def wrong(rule: RuleTarget, tokens: list[int]) -> DraftTree:
    return DraftTree.chain(len(tokens), (tokens[-1], (rule.next_token(tokens) + 1) % 7))


def stale(rule: RuleTarget, tokens: list[int]) -> DraftTree:
    return right(rule, tokens[:-1])


def future(rule: RuleTarget, tokens: list[int]) -> DraftTree:
    return right(rule, rule.continued(tokens, 1))


def rootless(rule: RuleTarget, tokens: list[int]) -> DraftTree:
    return DraftTree.chain(len(tokens), ((tokens[-1] + 1) % rule.vocab_size, 0))


def wordless(rule: RuleTarget, tokens: list[int]) -> DraftTree:
    return DraftTree.chain(len(tokens), (tokens[-1], rule.vocab_size))


async def silent(rule: RuleTarget, commits: Any, context: Any) -> AsyncIterator[pb.DraftResponse]:
    """Open, and say nothing more."""
    yield OPENED
    await asyncio.Event().wait()


async def mute(rule: RuleTarget, commits: Any, context: Any) -> AsyncIterator[pb.DraftResponse]:
    """Do not even open."""
    await asyncio.Event().wait()
    yield OPENED


async def leaving(rule: RuleTarget, commits: Any, context: Any) -> AsyncIterator[pb.DraftResponse]:
    """Open, and go."""
    yield OPENED


async def babbling(rule: RuleTarget, commits: Any, context: Any) -> AsyncIterator[pb.DraftResponse]:
    """Open, and send something that is no tree."""
    yield OPENED
    tree = speculation_pb2.DraftTree(committed_len=5, tokens=[1, 2], parents=[-1, 7])
    yield pb.DraftResponse(tree=tree)


async def empty(rule: RuleTarget, commits: Any, context: Any) -> AsyncIterator[pb.DraftResponse]:
    """Send messages with nothing in them."""
    yield pb.DraftResponse()


def dying() -> Script:
    """Return a script that drafts twice and breaks, for ever."""
    left = [2]

    async def script(
        rule: RuleTarget, commits: Any, context: Any
    ) -> AsyncIterator[pb.DraftResponse]:
        while left[0]:
            if left[0] == 2:
                yield OPENED
            left[0] -= 1
            yield response(right(rule, await anext(commits)))
        await context.abort(grpc.StatusCode.INTERNAL, "broken")

    return script


async def flooding(rule: RuleTarget, commits: Any, context: Any) -> AsyncIterator[pb.DraftResponse]:
    """Send trees for any state but the present one, for as long as anybody listens."""
    yield OPENED
    for committed_len in itertools.cycle((1, 2, 2**40)):
        yield response(DraftTree.chain(committed_len, tuple(range(64))))


def refusing(code: grpc.StatusCode, details: str) -> Script:
    """Return a script that refuses every session."""

    async def script(
        rule: RuleTarget, commits: Any, context: Any
    ) -> AsyncIterator[pb.DraftResponse]:
        await context.abort(code, details)
        yield OPENED

    return script
