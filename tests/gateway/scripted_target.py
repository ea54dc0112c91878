"""A target service that decodes by a plain rule, and goes wrong as a script says."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from protos import target_pb2 as pb
from protos import target_pb2_grpc
from protos.messages import DraftTree, Verdict
from tests.gateway.rule_target import RuleTarget
from tests.loopback import listening

# Called before verdict `number` is sent, 0 being the prompt's: it may wait, abort, or spoil it.
Script = Callable[[int, Verdict, Any], Awaitable[Any]]


async def honest(number: int, verdict: Verdict, context: Any) -> Any:
    """Send every verdict as it is."""
    return verdict.to_proto()


class ScriptedTarget(target_pb2_grpc.TargetServiceServicer):
    """Serves any number of sessions, and tells followers what each of them committed."""

    def __init__(self, rule: RuleTarget, script: Script = honest) -> None:
        self.rule = rule
        self._script = script
        self.num_sessions = 0
        self.opened: list[pb.OpenSession] = []
        self.trees: list[DraftTree] = []
        self.faults: list[str] = []
        # By session: its tokens after each commit, for a drafter that follows it.
        self.commits: dict[str, asyncio.Queue[list[int]]] = defaultdict(asyncio.Queue)

    async def Decode(  # noqa: N802
        self, requests: AsyncIterator[pb.DecodeRequest], context: Any
    ) -> AsyncIterator[pb.DecodeResponse]:
        """Answer the prompt and then every tree."""
        opened = (await anext(aiter(requests))).open
        self.opened.append(opened)
        self.num_sessions += 1
        try:
            yield pb.DecodeResponse(opened=pb.SessionOpened())
            tokens = list(opened.prompt_token_ids)
            tree, number = DraftTree.plain(len(tokens), tokens[-1]), 0
            while True:
                verdict = self.rule.verdict(tokens, tree)
                answer = await self._script(number, verdict, context)
                tokens.extend(verdict.tokens)
                self.commits[opened.session_id].put_nowait(list(tokens))
                yield pb.DecodeResponse(verdict=answer)
                next_tree = await self._next_tree(requests, tokens, opened)
                if next_tree is None:
                    return
                tree, number = next_tree, number + 1
                self._check(tree, tokens, opened)
        finally:
            self.num_sessions -= 1

    async def _next_tree(
        self,
        requests: AsyncIterator[pb.DecodeRequest],
        tokens: list[int],
        opened: pb.OpenSession,
    ) -> DraftTree | None:
        if len(tokens) < opened.run.until_len and tokens[-1] not in opened.stop_token_ids:
            return DraftTree.plain(len(tokens), tokens[-1])
        request = await anext(aiter(requests), None)
        return DraftTree.from_proto(request.verify) if request else None

    def _check(self, tree: DraftTree, tokens: list[int], opened: pb.OpenSession) -> None:
        """Note what a real target would have to refuse."""
        self.trees.append(tree)
        if (tree.committed_len, tree.tokens[0]) != (len(tokens), tokens[-1]):
            self.faults.append(f"{tree} for {tokens}")
        if max(tree.tokens) >= self.rule.vocab_size:
            self.faults.append(f"{tree} has unknown tokens")
        if len(tokens) + len(tree.tokens) > len(opened.prompt_token_ids) + opened.max_new_tokens:
            self.faults.append(f"{tree} may outgrow the session of {len(tokens)} tokens")

    def add_to(self, server: Any) -> None:
        target_pb2_grpc.add_TargetServiceServicer_to_server(self, server)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Yield the address it serves on; it dies at the end."""
        async with listening(self.add_to) as address:
            yield address
