"""Recording a real target over a real socket: what is kept is what the target did."""

import asyncio

import grpc
import pytest
import torch

from protos.messages import SamplingParams
from protos.pairing import Pairing
from target_service.models import build_model, model_config
from target_service.weights import Weights, read_config
from tests.target_service.served_target import serve
from tests.tiny_llama import write_tiny_llama
from training.chat_frame import ChatFrame
from training.made_up import made_up_scripts
from training.record import Recorder, RecordSettings, source_of
from training.recording import Recording, read_shards
from training.script import Script, Turn
from training.target_client import Decoding, Target

SCRIPTS = [
    Script("given", "chat", (Turn("Hello"),)),
    Script("two-turns", "chat", (Turn("One"), Turn("Two")), "Be brief."),
    Script("made-up", "code", (Turn("Write", open_ended=True),)),
]
SETTINGS = RecordSettings(10**9, concurrency=3, max_new_tokens=12, temperatures=(0.0, 1.0))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_tiny_llama(
        tmp_path_factory.mktemp("m") / "tiny", hidden=32, layers=4, seed=3, tokenizer=True
    )


def built(model_dir):
    """Return the model in a directory."""
    weights = Weights(model_dir, torch.float32)
    return build_model(model_config(read_config(model_dir)), weights, 400, "dense")


@pytest.fixture
async def target(model_dir):
    async with serve(built(model_dir)) as served:
        yield served


def recorder(target, model_dir, settings=SETTINGS, client=None):
    return Recorder(
        client or Target(target.channel),
        ChatFrame.from_directory(model_dir),
        target.pairing,
        300,
        settings,
    )


async def record(target, model_dir, directory, scripts=SCRIPTS, settings=SETTINGS):
    one = recorder(target, model_dir, settings)
    recording = Recording(directory, source_of(await one.target.info(), "bf16"), 2**30)
    await one.record(iter(scripts), recording, lambda: None)
    return {
        shard.facts[number].sample_id: shard.sample(number)
        for shard in read_shards(directory)
        for number in range(len(shard.facts))
    }


async def replay(target, sample):
    """Let the target decode each answer of a sample once more, after what came before it."""
    client, tokens = Target(target.channel), sample.tokens_N.tolist()
    for number, (begin, end) in enumerate(sample.facts.answers):
        decoding = Decoding(
            f"again-{number}", tokens[:begin], 12, sample.facts.sampling, frozenset({258})
        )
        yield await client.decode(decoding), tokens[begin:end]


async def test_answers_are_what_the_target_says_to_what_came_before(target, model_dir, tmp_path):
    samples = await record(target, model_dir, tmp_path)
    assert samples.keys() == {"given", "two-turns", "made-up"}
    for sample in samples.values():
        async for again, recorded in replay(target, sample):
            assert again == recorded


async def test_taps_are_those_of_a_session_that_was_fed_the_whole_text(target, model_dir, tmp_path):
    samples = await record(target, model_dir, tmp_path)
    client = Target(target.channel)
    for sample in samples.values():
        tokens = sample.tokens_N.tolist()
        decoding = Decoding("whole", tokens, 1, SamplingParams(temperature=0), frozenset())
        _, taps = await client.decode_with_taps(decoding, target.pairing)
        assert torch.equal(taps[: len(tokens) - 1].bfloat16(), sample.taps_TX)


async def test_a_conversation_reads_as_the_chat_template_renders_it(target, model_dir, tmp_path):
    frame = ChatFrame.from_directory(model_dir)
    sample = (await record(target, model_dir, tmp_path))["two-turns"]
    (first, end), (second, _) = sample.facts.answers
    tokens = sample.tokens_N.tolist()
    said = frame.tokenizer.decode(tokens[first:end])
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": said},
        {"role": "user", "content": "Two"},
    ]
    text = frame.tokenizer.decode(tokens[:second], skip_special_tokens=False)
    assert text == frame.template.render(messages)


async def test_a_recording_goes_on_where_it_ended(target, model_dir, tmp_path):
    await record(target, model_dir, tmp_path, SCRIPTS[:2])
    before = {path: path.read_bytes() for path in tmp_path.glob("shard-*")}
    samples = await record(target, model_dir, tmp_path)
    assert len(samples) == 3
    assert all(path.read_bytes() == content for path, content in before.items())


async def test_a_recording_that_is_broken_off_keeps_what_was_finished(target, model_dir, tmp_path):
    one = recorder(target, model_dir)
    recording = Recording(tmp_path, source_of(await one.target.info(), "bf16"), 2**30)
    finished = asyncio.Event()
    running = asyncio.create_task(one.record(made_up_scripts(0), recording, finished.set))
    await finished.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    kept = {facts.sample_id for shard in read_shards(tmp_path) for facts in shard.facts}
    assert kept == recording.sample_ids
    assert kept
    await target.drained()


async def test_it_ends_when_there_is_enough(target, model_dir, tmp_path):
    settings = RecordSettings(100, concurrency=2, max_new_tokens=8)
    samples = await record(target, model_dir, tmp_path, made_up_scripts(0), settings)
    assert 100 <= sum(len(sample.tokens_N) for sample in samples.values()) <= 1000
    await target.drained()


async def test_a_conversation_without_room_for_an_answer_is_skipped(target, model_dir, tmp_path):
    scripts = [Script("long", "chat", (Turn("x" * 400),)), SCRIPTS[0]]
    samples = await record(target, model_dir, tmp_path, scripts)
    assert samples.keys() == {"given"}


async def test_a_full_target_is_asked_again(target, model_dir, tmp_path):
    """More conversations at once than the target has sessions for."""
    settings = RecordSettings(10**9, concurrency=12, max_new_tokens=4)
    scripts = [Script(f"s{n}", "chat", (Turn(f"Hello {n}"),)) for n in range(24)]
    samples = await record(target, model_dir, tmp_path, scripts, settings)
    assert len(samples) == 24


@pytest.mark.parametrize("wrong", [{"temperatures": (0.0, float("nan"))}, {"top_p": 2.0}])
def test_what_a_target_would_refuse_is_refused_before_it_is_asked(wrong):
    with pytest.raises(ValueError, match="must be in"):
        RecordSettings(100, **wrong)


async def test_taps_that_do_not_fit_are_refused_with_both_sides(target, model_dir):
    wrong = Pairing(**vars(target.pairing) | {"tap_layers": (0, 1)})
    decoding = Decoding("a", [1, 2], 2, SamplingParams(), frozenset())
    with pytest.raises(grpc.aio.AioRpcError, match=r"missing \[0\]"):
        await Target(target.channel).decode_with_taps(decoding, wrong)
