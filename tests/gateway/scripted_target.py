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
        """Answer the prompt and then every tree, and what is run plainly."""
        opened = (await anext(aiter(requests))).open
        self.opened.append(opened)
        self.num_sessions += 1
        try:
            yield pb.DecodeResponse(opened=pb.SessionOpened())
            tokens = list(opened.prompt_token_ids)
            tree, number, until = DraftTree.plain(len(tokens), tokens[-1]), 0, opened.run.until_len
            while True:
                verdict = self.rule.verdict(tokens, tree)
                answer = await self._script(number, verdict, context)
                tokens.extend(verdict.tokens)
                self.commits[opened.session_id].put_nowait(list(tokens))
                yield pb.DecodeResponse(verdict=answer)
                runs = len(tokens) < until and tokens[-1] not in opened.stop_token_ids
                tree, number = DraftTree.plain(len(tokens), tokens[-1]), number + 1
                while not runs:
                    request = await anext(aiter(requests), None)
                    if request is None:
                        return
                    until = request.run.until_len
                    runs = len(tokens) < until
                    # A stale tree is dropped: verdicts that are under way answer it.
                    if request.verify.committed_len >= len(tokens):
                        tree, runs = DraftTree.from_proto(request.verify), True
                self._check(tree, tokens, opened)
        finally:
            self.num_sessions -= 1

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
