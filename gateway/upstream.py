"""The gateway's side of the other services: one stream a session to each.

The target's stream is awaited: without it there is no answer. The draft service's runs beside it
and only ever reports to the rounds: whatever happens to it, the answer goes on.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import structlog

from gateway.round import Rounds
from gateway.sampling_params import Generation
from protos import draft_pb2, draft_pb2_grpc, target_pb2, target_pb2_grpc
from protos.messages import DraftTree, Plan, Verdict

log = structlog.get_logger()

# Longer than the longest pause between a channel's attempts to connect.
_OPEN_PATIENCE_S = 3.0
_OPEN_PAUSE_S = 0.1

# Another try at the same replica would end the same way.
_FINAL = (
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
)


class TargetStream:
    """One session at the target. Whoever opens it must `cancel` it in the end."""

    def __init__(self, stub: target_pb2_grpc.TargetServiceStub, session_id: str) -> None:
        self.session_id = session_id
        self.cached_prompt_tokens = 0
        self._stub = stub
        self._call = stub.Decode()

    async def open(self, generation: Generation, run_until: int, *, expect_taps: bool) -> None:
        """Open the session; the prompt's verdict will follow. Raises AioRpcError.

        Until `run_until` tokens are committed the target goes on by itself: no message a token from
        here to there. `expect_taps`: a drafter is about to follow.

        A target that cannot be reached is tried again for a moment: after a restart the channel
        itself finds it only at its next attempt to connect.
        """
        deadline = time.monotonic() + _OPEN_PATIENCE_S
        while True:
            try:
                await self._open_once(generation, run_until, expect_taps=expect_taps)
                return
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE or time.monotonic() > deadline:
                    raise
            await asyncio.sleep(_OPEN_PAUSE_S)
            self._call = self._stub.Decode()

    async def _open_once(
        self, generation: Generation, run_until: int, *, expect_taps: bool
    ) -> None:
        request = target_pb2.OpenSession(
            session_id=self.session_id,
            prompt_token_ids=generation.prompt,
            max_new_tokens=generation.stopping.max_new_tokens,
            sampling=generation.sampling.to_proto(),
            expect_taps=expect_taps,
            stop_token_ids=generation.stopping.stop_token_ids,
            priority=generation.priority,
            recordable=generation.recordable,
            forced_accept_length=generation.forced_accept_length,
            run=target_pb2.Run(until_len=run_until) if run_until else None,
        )
        await self._write(target_pb2.DecodeRequest(open=request))
        opened = (await self._read()).opened
        self.cached_prompt_tokens = opened.cached_prompt_tokens

    async def verify(self, tree: DraftTree) -> None:
        """Send a tree. Raises AioRpcError."""
        await self._write(target_pb2.DecodeRequest(verify=tree.to_proto()))

    async def run(self, until_len: int) -> None:
        """Let the target decode plainly until so many tokens are committed. Raises AioRpcError."""
        run = target_pb2.Run(until_len=until_len)
        await self._write(target_pb2.DecodeRequest(run=run))

    async def verdict(self) -> Verdict:
        """Wait for the next verdict. Raises AioRpcError."""
        return Verdict.from_proto((await self._read()).verdict)

    def cancel(self) -> None:
        """End the session, wherever it stands."""
        self._call.cancel()

    async def _write(self, request: target_pb2.DecodeRequest) -> None:
        try:
            await self._call.write(request)
        except asyncio.InvalidStateError:
            # The stream ended already; reading it says why.
            await self._read()

    async def _read(self) -> target_pb2.DecodeResponse:
        response = await self._call.read()
        if response is grpc.aio.EOF:
            code, details = await self._call.code(), await self._call.details()
            if code is grpc.StatusCode.OK:
                code, details = grpc.StatusCode.UNAVAILABLE, "the target ended the session"
            raise grpc.aio.AioRpcError(
                code, await self._call.initial_metadata(), grpc.aio.Metadata(), details
            )
        return response


class DraftReplicas:
    """The draft services, taken in turn."""

    def __init__(self, channels: Sequence[grpc.aio.Channel]) -> None:
        if not channels:
            raise ValueError("at least one draft service is needed, got none")
        self._stubs = [draft_pb2_grpc.DraftServiceStub(channel) for channel in channels]
        self._turn = itertools.cycle(range(len(channels)))

    def __len__(self) -> int:
        return len(self._stubs)

    def rotation(self) -> list[draft_pb2_grpc.DraftServiceStub]:
        """Return all replicas, first the one whose turn it is."""
        first = next(self._turn)
        return self._stubs[first:] + self._stubs[:first]


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class DraftStream:
    """One session's drafts: opened, lost and opened again beside the rounds they are for.

    Follows the session from now on, until it is cancelled.
    """

    def __init__(
        self,
        replicas: DraftReplicas,
        session_id: str,
        name: str,
        generation: Generation,
        rounds: Rounds,
        news: Callable[[], None],
    ) -> None:
        """`name` is the drafter's, empty for the default; `rounds` want it.

        `news` is called after everything that the rounds were told.
        """
        self._num_replicas = len(replicas)
        self._turn = itertools.cycle(replicas.rotation())
        self._session_id = session_id
        self._name = name
        self._generation = generation
        self._rounds = rounds
        self._news = news
        self._call: Any = None
        # What the drafter was asked for last, and what it is to be asked for.
        self._asked: Plan | None = None
        self._plan = rounds.drafters[name]
        self._asking: asyncio.Task[None] | None = None
        self.following = asyncio.create_task(self._run())
        """Ends when it was cancelled, or when all replicas refused for good."""

    def ask(self, plan: Plan) -> None:
        """Change the standing plan, also of a stream that opens later."""
        self._plan = plan
        if self._asked not in (None, plan) and self._asking is None:
            self._asking = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        """Send plans, one write at a time, until the newest was sent."""
        try:
            while self._asked not in (None, self._plan):
                self._asked = self._plan
                await self._call.write(draft_pb2.DraftRequest(plan=self._plan.to_proto()))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # Whoever reads the stream learns why it ended.
        finally:
            self._asking = None

    def cancel(self) -> None:
        """Follow no longer."""
        self.following.cancel()
        if self._asking is not None:
            self._asking.cancel()
        # What a cancelled task keeps of its frames must not keep us, nor we it.
        self.following.add_done_callback(lambda _: vars(self).pop("following"))

    async def _run(self) -> None:
        """Follow the session until cancelled, with ever longer pauses between failures.

        Replicas need not have the same drafters: only when all have refused is that final.
        """
        logged, refusals = False, 0
        reasons: deque[str] = deque(maxlen=self._num_replicas)
        while True:
            reason, refused = await self._follow_once()
            if _is_cancelled():
                # A call that failed at the same moment hides it: nobody wants drafts any more.
                return
            refusals = refusals + 1 if refused else 0
            final = refusals == self._num_replicas
            reasons.append(reason)
            pause_s = self._rounds.on_drafter_lost(self._name, "; ".join(dict.fromkeys(reasons)))
            self._news()
            if not logged:
                log.warning("drafter_lost", session_id=self._session_id, reason=reason, final=final)
                logged = True
            if final:
                return
            await asyncio.sleep(pause_s)

    async def _follow_once(self) -> tuple[str, bool]:
        """Open a stream and pass on what comes; return why it ended, and whether it was refused."""
        call = next(self._turn).Draft()
        try:
            plan = self._plan
            await call.write(draft_pb2.DraftRequest(open=self._open_request(plan)))
            self._call, self._asked = call, plan
            self.ask(self._plan)
            async for response in call:
                self._take(response)
            return "the draft service ended the session", False
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}", error.code() in _FINAL
        except asyncio.InvalidStateError:
            code = await call.code()
            return f"{code.name}: {await call.details()}", code in _FINAL
        except ValueError as error:
            return f"the draft service sent nonsense: {error}", False
        finally:
            self._asked = None
            call.cancel()

    def _open_request(self, plan: Plan) -> draft_pb2.OpenDraft:
        generation = self._generation
        return draft_pb2.OpenDraft(
            session_id=self._session_id,
            drafter_id=self._name,
            token_ids=self._rounds.tokens,
            prompt_len=len(generation.prompt),
            sampling=generation.sampling.to_proto(),
            plan=plan.to_proto(),
        )

    def _take(self, response: draft_pb2.DraftResponse) -> None:
        if response.WhichOneof("message") == "opened":
            self._rounds.on_drafter_open(self._name, response.opened.drafter_id)
        else:
            self._rounds.on_tree(self._name, DraftTree.from_proto(response.tree))
        self._news()
