"""A drafter judged on a recording has the rounds that it has when it serves: offline is online."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from draft_service.drafters.eagle3 import Eagle3Drafter
from draft_service.shelf import SHELF
from kernels import native
from protos.messages import Plan
from protos.pairing import Pairing
from slipstream.client import Client
from slipstream.drafter_facts import side_of
from slipstream.evaluate import online_rounds
from slipstream.stack import Addresses, LocalStack, StackConfig
from training.chat_frame import ChatFrame
from training.evaluate import report_of
from training.record import Recorder, RecordSettings, source_of
from training.recording import Recording, Shard, read_shards
from training.replay import Round, replay
from training.script import Script, Turn
from training.tap_columns import columns_of
from training.target_client import connect

pytestmark = pytest.mark.model
NAME, STEPS = "smollm2-135m-eagle3", 3
QUESTIONS = ("What is a river?", "Write a haiku about bees.", "2 + 2 * 3?", "Who was Ada Lovelace?")
SCRIPTS = [Script(f"q{n}", "chat", (Turn(text),)) for n, text in enumerate(QUESTIONS)]


@pytest.fixture(scope="module")
def stack(smollm2: Path) -> Iterator[LocalStack]:
    # A slow machine must not turn drafts into misses: offline there are none.
    patient = ("--draft-deadline-ms", "20000")
    config = StackConfig(smollm2, Addresses.free(), drafters=(NAME,), gateway_args=patient)
    with LocalStack(config) as running:
        yield running


async def record(address: str, model: Path, directory: Path) -> None:
    async with connect(address) as target:
        info = await target.info()
        recorder = Recorder(
            target,
            ChatFrame.from_directory(model),
            Pairing.from_proto(info.pairing),
            info.max_context_len,
            RecordSettings(10**9, len(SCRIPTS), 48, temperatures=(0.0, 0.7)),
        )
        recording = Recording(directory, source_of(info, "bf16"), 2**30)
        await recorder.record(iter(SCRIPTS), recording, lambda: None)


@pytest.fixture(scope="module")
def shards(stack, smollm2, tmp_path_factory) -> list[Shard]:
    directory = tmp_path_factory.mktemp("recording")
    asyncio.run(record(stack.addresses.target, smollm2, directory))
    return read_shards(directory)


def accepted(rounds: Sequence[Round]) -> list[tuple[str, int, int]]:
    """Where each round was, and how much of its draft was right."""
    return [
        (one.sample.facts.sample_id, one.scored.committed_len, one.scored.accepted)
        for one in rounds
    ]


@pytest.fixture
def drafter(smollm2) -> Iterator[Eagle3Drafter]:
    native.select("auto", 1)
    yield Eagle3Drafter.load("offline", SHELF / NAME, side_of(smollm2), kv_tokens=4096)
    native.disable()


def test_offline_and_online_agree_round_by_round(stack, shards, drafter):
    """Greedy and sampled. So their accept lengths agree, not within 2 % but exactly."""
    plan = Plan(steps=STEPS, top_k=1, draft_tokens=STEPS + 1)
    samples = [shard.sample(number) for shard in shards for number in range(len(shard.facts))]
    columns = columns_of(drafter.pairing.tap_layers, shards[0].source)
    offline = list(replay(drafter, samples, columns, plan))
    with Client(stack.addresses.gateway) as client:
        online = [r for s in samples for r in online_rounds(client, s, NAME, STEPS)]
    assert sorted(accepted(offline)) == sorted(accepted(online))
    cards = [report_of(rounds, STEPS).as_json()["scores"]["all"] for rounds in (offline, online)]
    assert cards[0] == cards[1]
    assert cards[0]["accept_length"] > 1.1
