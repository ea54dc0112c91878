"""Recording what a target is asked anyway: all of what may be kept, whole, and nothing else."""

import asyncio

import pytest
import torch

from protos import target_pb2 as pb
from protos.messages import SamplingParams
from tests.loopback import eventually
from tests.target_service.served_target import serve
from tests.tiny_llama import write_tiny_llama
from tests.training.test_record import built
from training.live import LiveRecorder
from training.record import source_of
from training.recording import Recording, read_shards
from training.target_client import Decoding, Target


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("m") / "tiny", hidden=32, layers=4, seed=3)


@pytest.fixture
async def target(model_dir):
    async with serve(built(model_dir), max_sessions=16) as served:
        yield served


async def converse(target, session_id, prompt, *, recordable, tokens=20):
    """Be a gateway's plain request; return prompt and answer."""
    call = target.stub.Decode()
    opening = pb.OpenSession(
        session_id=session_id,
        prompt_token_ids=prompt,
        max_new_tokens=tokens,
        sampling=SamplingParams(temperature=0).to_proto(),
        run=pb.Run(until_len=len(prompt) + tokens),
        recordable=recordable,
    )
    await call.write(pb.DecodeRequest(open=opening))
    answer = []
    async for response in call:
        answer += response.verdict.tokens
        if len(answer) >= tokens:
            break
    call.cancel()
    return [*prompt, *answer]


async def watched(target):
    """Wait until the recorder is told of sessions."""
    await eventually(lambda: bool(target.servicer._watch._watchers))


def recorded(directory):
    return {
        shard.facts[n].sample_id: shard.sample(n)
        for shard in read_shards(directory)
        for n in range(len(shard.facts))
    }


async def begin(target, directory, num_tokens, share=1.0):
    client = Target(target.channel)
    recording = Recording(directory, source_of(await client.info(), "bf16"), 2**30)
    recorder = LiveRecorder(client, target.pairing, num_tokens, share)
    running = asyncio.create_task(recorder.record(recording, lambda: None))
    await watched(target)
    return running


async def test_what_may_be_kept_is_kept_whole_and_nothing_else(target, tmp_path):
    """Tokens and taps are those that a recorder of its own would have got."""
    running = await begin(target, tmp_path, 4 * 25)
    talks = await asyncio.gather(
        *(converse(target, f"s{n}", [n + 1, 2, 3, 4, 5], recordable=n % 2 == 0) for n in range(8))
    )
    await running
    samples = recorded(tmp_path)
    assert samples.keys() == {"s0", "s2", "s4", "s6"}
    for name, sample in samples.items():
        tokens = talks[int(name[1:])]
        assert sample.tokens_N.tolist() == tokens
        assert sample.facts.answers == ((5, 25),)
        decoding = Decoding("again", tokens, 1, SamplingParams(temperature=0), frozenset())
        _, taps = await Target(target.channel).decode_with_taps(decoding, target.pairing)
        assert torch.equal(sample.taps_TX, taps[:24].bfloat16())


async def test_a_session_that_is_cancelled_is_kept_as_far_as_it_came(target, tmp_path):
    running = await begin(target, tmp_path, 1)
    call = target.stub.Decode()
    opening = pb.OpenSession(
        session_id="cut",
        prompt_token_ids=[1, 2, 3],
        max_new_tokens=200,
        recordable=True,
        sampling=SamplingParams(temperature=0).to_proto(),
        run=pb.Run(until_len=203),
    )
    await call.write(pb.DecodeRequest(open=opening))
    for _ in range(10):
        await call.read()
    call.cancel()
    await running
    sample = recorded(tmp_path)["cut"]
    assert 3 < len(sample.tokens_N) <= 203
    await target.drained()


async def test_the_rows_that_are_held_back_for_a_drafter_stay_its_own(target, tmp_path):
    """A recorder that comes first takes nothing away from the drafter that was announced."""
    await begin(target, tmp_path, 10**6)
    call = target.stub.Decode()
    opening = pb.OpenSession(
        session_id="both",
        prompt_token_ids=list(range(1, 40)),
        max_new_tokens=5,
        expect_taps=True,
        recordable=True,
        sampling=SamplingParams(temperature=0).to_proto(),
    )
    await call.write(pb.DecodeRequest(open=opening))
    await call.read()
    await call.read()
    await eventually(lambda: target.hub.num_subscriptions == 1)
    request = pb.StreamTapsRequest(
        session_id="both", pairing=target.pairing.to_proto(), known_len=39
    )
    attached = (await target.stub.StreamTaps(request).read()).attached
    assert attached.first_row == 0
    call.cancel()


async def test_a_gateway_that_vanishes_leaves_no_watcher(target, tmp_path):
    running = await begin(target, tmp_path, 10**6)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await eventually(lambda: not target.servicer._watch._watchers)
