"""A target on a real socket, with its parts in reach, and a client's half of a session."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from protos import serving, target_pb2_grpc, tensors
from protos import speculation_pb2 as spec
from protos import target_pb2 as pb
from protos.messages import DraftTree, SamplingParams, Verdict
from protos.pairing import Pairing
from target_service.engine import Engine, Outcome
from target_service.kv_memory import PAGE_LEN, KvMemory
from target_service.models.llama import Llama
from target_service.scheduler import Scheduler
from target_service.server import TargetFacts, TargetServicer
from target_service.session import Rows
from target_service.step_loop import StepLoop
from target_service.taps import TapHub
from tests.target_service.waiting import soon, until

TAP_LAYERS = (1, 2, 4)
MAX_CONTEXT_LEN = 300
GREEDY = SamplingParams(temperature=0)


class GatedEngine(Engine):
    """An engine whose steps wait while the gate is closed."""

    def __init__(self, model: Llama, num_pages: int) -> None:
        super().__init__(model, TAP_LAYERS, num_pages)
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Event()

    def step(self, batch: Sequence[Rows]) -> list[Outcome]:
        self.started.set()
        assert self.gate.wait(30)
        return super().step(batch)


def pairing_of(model: Llama) -> Pairing:
    return Pairing(
        hidden_size=model.config.hidden_size,
        vocab_size=model.config.vocab_size,
        tap_layers=TAP_LAYERS,
        tap_dtype=tensors.wire_dtype(model.dtype),
        target_fingerprint="fingerprint-of-tiny",
        tokenizer_digest="digest-of-tiny",
    )


@dataclass
class ServedTarget:
    model: Llama
    max_sessions: int = 8
    kv_tokens: int = 4096
    tap_buffer: int = 2**20
    attach_timeout_s: float = 30
    allows_forced_acceptance: bool = False
    address: str = field(init=False)
    channel: grpc.aio.Channel = field(init=False)
    stub: Any = field(init=False)

    def __post_init__(self) -> None:
        self.pairing = pairing_of(self.model)
        num_pages = self.kv_tokens // PAGE_LEN
        self.engine = GatedEngine(self.model, num_pages)
        self.memory = KvMemory(num_pages)
        self.scheduler = Scheduler(
            self.memory, step_rows=128, chunk_len=16, max_sessions=self.max_sessions
        )
        self.hub = TapHub(
            self.pairing, max_bytes=self.tap_buffer, attach_timeout_s=self.attach_timeout_s
        )
        self.loop = StepLoop(self.engine, self.scheduler, self.hub)
        facts = TargetFacts(
            "tiny",
            self.pairing,
            4,
            MAX_CONTEXT_LEN,
            "float32",
            "cpu",
            "reference",
            self.allows_forced_acceptance,
        )
        self.servicer = TargetServicer(facts, self.loop, self.scheduler, self.hub)

    def open(self, *messages: pb.DecodeRequest) -> "ClientSession":
        return ClientSession(self.stub.Decode(), messages)

    async def silent(self) -> None:
        """Wait until nothing is left to compute."""
        self.engine.gate.set()
        await until(lambda: not (self.scheduler.num_ready or self.loop.is_running))

    async def drained(self) -> None:
        """Wait until the target says that it holds nothing."""
        self.engine.gate.set()
        for _ in range(10_000):
            load = (await self.stub.GetTarget(pb.GetTargetRequest())).load
            held = (load.sessions, load.queued, load.kv_tokens_reserved, load.tap_subscriptions)
            if held == (0, 0, 0, 0):
                return
        raise AssertionError(f"still held: {load}")


@asynccontextmanager
async def serve(model: Llama, **limits: Any) -> AsyncIterator[ServedTarget]:
    target = ServedTarget(model, **limits)
    server = serving.new_server()
    target_pb2_grpc.add_TargetServiceServicer_to_server(target.servicer, server)
    target.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    stepping = asyncio.create_task(target.loop.serve())
    try:
        async with serving.open_channel(target.address) as channel:
            target.channel = channel
            target.stub = target_pb2_grpc.TargetServiceStub(channel)
            yield target
            assert not stepping.done()
    finally:
        target.engine.gate.set()
        await server.stop(0)
        stepping.cancel()


def open_request(
    prompt: Sequence[int] = (1, 2, 3),
    *,
    session_id: str = "a",
    max_new_tokens: int = 50,
    sampling: SamplingParams = GREEDY,
    **fields: Any,
) -> pb.DecodeRequest:
    return pb.DecodeRequest(
        open=pb.OpenSession(
            session_id=session_id,
            prompt_token_ids=prompt,
            max_new_tokens=max_new_tokens,
            sampling=sampling.to_proto(),
            **fields,
        )
    )


class ClientSession:
    """One Decode call: what was committed, as its client knows it."""

    def __init__(self, call: Any, messages: Sequence[pb.DecodeRequest]) -> None:
        self.call = call
        self._messages = messages
        self.prompt = list(messages[0].open.prompt_token_ids) if messages else []
        self.answer: list[int] = []

    async def send_first(self) -> "ClientSession":
        for message in self._messages:
            await self.call.write(message)
        return self

    async def begin(self) -> "ClientSession":
        """Open the session and read the verdict of its prompt."""
        await self.send_first()
        opened = await soon(self.call.read())
        assert opened.WhichOneof("message") == "opened"
        await self.verdict()
        return self

    async def verify(self, tokens: Sequence[int] = (), parents: Sequence[int] = ()) -> Verdict:
        await self.send(tokens, parents)
        return await self.verdict()

    async def send(self, tokens: Sequence[int] = (), parents: Sequence[int] = ()) -> None:
        known = self.prompt + self.answer
        tree = DraftTree(len(known), (known[-1], *tokens), (-1, *parents))
        await self.call.write(pb.DecodeRequest(verify=tree.to_proto()))

    async def run(self, until_len: int) -> None:
        await self.call.write(pb.DecodeRequest(run=pb.Run(until_len=until_len)))

    async def verdict(self) -> Verdict:
        response = await soon(self.call.read())
        assert response is not grpc.aio.EOF, await self.call.details()
        verdict = Verdict.from_proto(response.verdict)
        self.answer += verdict.tokens
        return verdict

    async def decode(self, num_tokens: int) -> list[int]:
        while len(self.answer) < num_tokens:
            await self.verify()
        return self.answer

    async def finish(self) -> grpc.StatusCode:
        """Half-close, read to the end; return the status."""
        await self.call.done_writing()
        while await soon(self.call.read()) is not grpc.aio.EOF:
            pass
        return await self.call.code()

    async def refusal(self) -> tuple[grpc.StatusCode, str]:
        return await refusal_of(self.call)


async def refusal_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """Read to the end of a call that the target refuses; return status and message."""
    try:
        while await soon(call.read()) is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    raise AssertionError("the call was not refused")


async def retry_delay_s(call: Any) -> float:
    """Return what RetryInfo of a refused call says."""
    status = await rpc_status.aio.from_call(call)
    retry = error_details_pb2.RetryInfo()
    assert status.details[0].Unpack(retry)
    return retry.retry_delay.ToMilliseconds() / 1000


def tree_of(session: ClientSession, **fields: object) -> pb.DecodeRequest:
    """Return a plain tree, except for `fields`."""
    known = session.prompt + session.answer
    right = {"committed_len": len(known), "tokens": [known[-1]], "parents": [-1]}
    return pb.DecodeRequest(verify=spec.DraftTree(**(right | fields)))
