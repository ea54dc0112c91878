"""One request from its first to its last chunk: the loop around the rounds.

open target and drafter ──▶ prompt's verdict ──▶ [draft ──▶ verify ──▶ commit ──▶ chunk] ...
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from gateway.answer import Answer, Chunk
from gateway.policy import Policy
from gateway.round import Rounds, Statistics
from gateway.sampling_params import Generation, ModelText
from gateway.upstream import DraftReplicas, DraftStream, TargetStream
from protos.messages import DraftTimings, DraftTree, Verdict, VerifyTimings


@dataclass(frozen=True)
class RoundTimings:
    """Where a round's time went. See gateway.proto."""

    round_us: int
    verify: VerifyTimings
    draft: DraftTimings


@dataclass(frozen=True)
class Committed:
    """What a verdict added. `accepted` tokens of the chunk, the first ones, had been drafted."""

    chunk: Chunk
    accepted: int
    timings: RoundTimings | None


class News:
    """Wakes the one who waits for it, at the latest after a while."""

    def __init__(self) -> None:
        self._waiter: asyncio.Future[None] | None = None

    def tell(self) -> None:
        """Something happened. Whoever does not wait has not looked yet."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, timeout_s: float) -> None:
        """Return at the next news, or after the timeout."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(timeout_s, self.tell)
        try:
            await self._waiter
        finally:
            timer.cancel()


class Session:
    """One request being answered."""

    def __init__(
        self,
        generation: Generation,
        model: ModelText,
        target: TargetStream,
        policy: Policy,
        deadline_s: float,
    ) -> None:
        """The policy ends with the session's `run`."""
        self._generation = generation
        self._target = target
        self._answer = Answer(model.tokenizer, generation.stopping)
        self._rounds = Rounds(
            list(generation.prompt),
            policy,
            vocab_size=model.vocab_size,
            max_new_tokens=generation.stopping.max_new_tokens,
            deadline_s=deadline_s,
        )
        self._policy = policy
        self._news = News()
        # By the name of the drafter.
        self._drafts: dict[str, DraftStream] = {}
        self._out: asyncio.Queue[Committed | Exception] = asyncio.Queue()

    @property
    def statistics(self) -> Statistics:
        return self._rounds.statistics

    @property
    def cached_prompt_tokens(self) -> int:
        """Tokens of the prompt that the target did not compute again."""
        return self._target.cached_prompt_tokens

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer so far."""
        return self._answer.num_tokens

    async def run(self, replicas: DraftReplicas) -> AsyncGenerator[Committed]:
        """Yield what each verdict committed, the last with a finish.

        Rounds do not wait for whoever takes the chunks: a slow client costs no speed. Raises
        grpc.aio.AioRpcError when the target fails. Whatever happens, both streams end.
        """
        rounds = asyncio.create_task(self._run_rounds(replicas))
        rounds.add_done_callback(lambda _: self._policy.end())
        try:
            finished = False
            while not finished:
                item = await self._out.get()
                if isinstance(item, Exception):
                    raise item
                yield item
                finished = item.chunk.finish is not None
        finally:
            rounds.cancel()
            self._target.cancel()

    async def _run_rounds(self, replicas: DraftReplicas) -> None:
        """Run all rounds; what they commit, or what ended them, goes to `run`.

        Both streams end with the last round, however long the client takes to read.
        """
        try:
            self._follow_policy(replicas)
            await self._target.open(
                self._generation, self._rounds.run_until, expect_taps=bool(self._rounds.drafters)
            )
            await self._take_rounds(replicas)
        except Exception as error:
            self._out.put_nowait(error)
        finally:
            self._target.cancel()
            for name in list(self._drafts):
                self._stop_drafting(name)

    async def _take_rounds(self, replicas: DraftReplicas) -> None:
        committed = self._commit(await self._target.verdict())
        while committed.chunk.finish is None:
            until = self._rounds.decide()
            self._follow_policy(replicas)
            if until is not None:
                await self._target.run(until)
            elif not self._rounds.runs_on:
                await self._target.verify(await self._next_tree())
            committed = self._commit(await self._target.verdict())

    def _follow_policy(self, replicas: DraftReplicas) -> None:
        """Have those drafters follow the session that should, with the plans of now."""
        wanted = self._rounds.drafters
        for name in self._drafts.keys() - wanted.keys():
            self._stop_drafting(name)
        for name, plan in wanted.items():
            if name in self._drafts:
                self._drafts[name].ask(plan)
            else:
                self._drafts[name] = self._draft_stream(replicas, name)

    def _draft_stream(self, replicas: DraftReplicas, name: str) -> DraftStream:
        session_id, news = self._target.session_id, self._news.tell
        return DraftStream(replicas, session_id, name, self._generation, self._rounds, news)

    def _stop_drafting(self, name: str) -> None:
        self._drafts.pop(name).cancel()
        self._rounds.on_drafter_left(name)

    async def _next_tree(self) -> DraftTree:
        """Wait for a draft as long as the round allows, and return what to verify."""
        while True:
            tree = self._rounds.poll(time.monotonic(), self._answer.remaining)
            if tree is not None:
                return tree
            await self._news.wait(self._rounds.deadline - time.monotonic())

    def _commit(self, verdict: Verdict) -> Committed:
        """Take in a verdict, the prompt's or that of a round, and pass on what it committed."""
        before, now = self._rounds.committed_at, time.monotonic()
        plan = self._rounds.plan
        tree = self._rounds.on_verdict(verdict, now)
        is_round = self._answer.num_tokens > 0
        chunk = self._answer.push(verdict.tokens, verdict.logprobs, verdict.top_logprobs)
        accepted = min(len(verdict.path), len(chunk.token_ids))
        timings = None
        if is_round:
            self.statistics.count(tree, accepted, verdict.timings, plan)
            timings = RoundTimings(int((now - before) * 1e6), verdict.timings, tree.timings)
        committed = Committed(chunk, accepted, timings)
        self._out.put_nowait(committed)
        return committed
