"""Requests over a real socket: what goes out, how a request is refused, and what it leaves."""

import asyncio

import grpc
import pytest

from gateway.detokenizer import IncrementalDetokenizer
from protos import gateway_pb2 as pb
from protos import speculation_pb2
from protos.serving import abort_retryable
from tests.gateway import scripted_drafter as drafters
from tests.gateway.local_gateway import (
    MODEL,
    NOBODY,
    PROMPT,
    TOKENIZER,
    answer,
    gateway,
    generate,
    plain_answer,
    refused,
    request,
    token_ids,
)
from tests.gateway.scripted_target import honest
from tests.loopback import eventually, retry_delay_ms

HONEST = drafters.drafting(drafters.right)
OFF = {"speculation": pb.Speculation(mode=pb.Speculation.MODE_OFF)}


async def test_chunks_put_together_are_the_answer():
    """Tokens, text and log-probabilities; who asked for what is said once, how it ended last."""
    async with gateway(HONEST) as local:
        chunks = await answer(local, new_tokens=100, request_id="mine")

    tokens = plain_answer(100)
    assert token_ids(chunks) == tokens
    assert "".join(chunk.text for chunk in chunks) == TOKENIZER.decode(tokens)
    logprobs = [logprob for chunk in chunks for logprob in chunk.logprobs]
    assert logprobs == [-float(token) for token in tokens]
    tops = [
        (list(top.token_ids), top.logprobs[0]) for chunk in chunks for top in chunk.top_logprobs
    ]
    assert tops == [([token, 0], -float(token)) for token in tokens]
    assert {chunk.request_id for chunk in chunks} == {"mine"}
    assert [chunk.HasField("prompt_info") for chunk in chunks] == [True] + [False] * len(chunks[1:])
    assert [chunk.HasField("finish") for chunk in chunks] == [False] * len(chunks[1:]) + [True]
    assert list(chunks[0].prompt_info.token_ids) == PROMPT
    usage = chunks[-1].finish.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (3, 100)


async def test_the_text_of_accepted_tokens_comes_first_in_a_chunk():
    async with gateway(HONEST) as local:
        chunks = await answer(local, new_tokens=200)

    assert sum(chunk.accepted_tokens for chunk in chunks) > 0
    detokenizer = IncrementalDetokenizer(TOKENIZER)
    for chunk in chunks[:-1]:
        texts = [detokenizer.push([token]) for token in chunk.token_ids]
        assert chunk.text == "".join(texts)
        assert chunk.accepted_text_len == len("".join(texts[: chunk.accepted_tokens]))


async def test_the_end_names_the_token_that_stopped():
    tokens = plain_answer()
    stopping = pb.StoppingCriteria(stop_token_ids=[tokens[5]], ignore_eos=True)
    async with gateway(HONEST) as local:
        chunks = await answer(local, stopping=stopping)
        await local.all_is_free()

    finish = chunks[-1].finish
    assert token_ids(chunks) == tokens[: tokens.index(tokens[5]) + 1]
    assert finish.reason == pb.FinishInfo.REASON_STOP
    assert finish.WhichOneof("matched") == "stop_token_id"
    assert finish.stop_token_id == tokens[5]


async def test_the_end_names_the_string_that_stopped():
    text = TOKENIZER.decode(plain_answer())
    stop = text[4:6]
    stopping = pb.StoppingCriteria(stop_strings=[stop], ignore_eos=True)
    async with gateway(HONEST) as local:
        chunks = await answer(local, stopping=stopping)

    finish = chunks[-1].finish
    assert "".join(chunk.text for chunk in chunks) == text[: text.index(stop)]
    assert (finish.reason, finish.stop_string) == (pb.FinishInfo.REASON_STOP, stop)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"sampling": speculation_pb2.SamplingParams(top_p=2)}, "top_p must be in (0, 1], got 2.0"),
        ({"new_tokens": 5000}, "max_new_tokens must be in [1, 4093]"),
        ({"token_ids": None, "text": ""}, "prompt needs at least one token"),
        (
            {"token_ids": None, "chat": pb.Chat(messages=[pb.ChatMessage(role="user")])},
            "no chat template",
        ),
    ],
)
async def test_a_bad_request_is_invalid_before_anything_runs(fields, reason):
    async with gateway() as local:
        error = await refused(local, **fields)
        await local.all_is_free()

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert reason in error.details()
    assert local.target.opened == []


async def waiting(number, verdict, context):
    """Answer the prompt, and nothing more."""
    if number:
        await asyncio.Event().wait()
    return verdict.to_proto()


async def test_a_gateway_without_room_says_when_to_try_again():
    """Room is free again once a request is gone."""
    async with gateway(target=waiting, max_requests=2) as local:
        calls = [generate(local) for _ in range(2)]
        for call in calls:
            await call.read()
        error = await refused(local)
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "2 requests are running already" in error.details()
        assert retry_delay_ms(error) > 0
        info = await local.stub.GetInfo(pb.GetInfoRequest())
        assert info.running_requests == 2

        calls[0].cancel()
        await eventually(lambda: local.target.num_sessions == 1)
        assert len((await generate(local).read()).token_ids) == 1


def aborting(number, code, details):
    """A target that ends the session instead of sending a verdict."""

    async def script(count, verdict, context):
        if count == number:
            await context.abort(code, details)
        return verdict.to_proto()

    return script


@pytest.mark.parametrize("number", [0, 3])
async def test_what_the_target_finds_invalid_is_invalid(number):
    code = grpc.StatusCode.INVALID_ARGUMENT
    async with gateway(target=aborting(number, code, "logit_bias: 9")) as local:
        error = await refused(local, **OFF)
        await local.all_is_free()

    assert (error.code(), error.details()) == (code, "logit_bias: 9")


async def test_a_full_target_says_when_to_try_again():
    async def full(number, verdict, context):
        await abort_retryable(context, "the KV cache is full")

    async with gateway(target=full) as local:
        error = await refused(local)
        await local.all_is_free()

    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.details() == "the KV cache is full"
    assert retry_delay_ms(error) > 0


@pytest.mark.parametrize("name", ["INTERNAL", "UNKNOWN", "ALREADY_EXISTS", "CANCELLED"])
async def test_anything_else_that_the_target_says_means_that_it_is_gone(name):
    script = aborting(2, grpc.StatusCode[name], "the step failed")
    async with gateway(target=script) as local:
        error = await refused(local, **OFF)
        await local.all_is_free()

    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details() == "the target is gone: the step failed"


@pytest.mark.parametrize("script", [drafters.silent, HONEST])
async def test_a_target_that_dies_makes_the_request_unavailable(script):
    async with gateway(script, waiting, deadline_s=0.1) as local:
        call = generate(local)
        await call.read()
        await local.kill_target()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call.read()
        await eventually(lambda: local.drafter.num_sessions == 0)

    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert error.value.details().startswith("the target is gone: ")


async def test_a_target_that_is_not_there_makes_requests_unavailable(monkeypatch):
    monkeypatch.setattr("gateway.upstream._OPEN_PATIENCE_S", 0.2)
    async with gateway() as local:
        await local.kill_target()
        error = await refused(local)

    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details().startswith("the target is gone: ")


def another_state(verdict):
    verdict.committed_len += 1


def longer_path(verdict):
    verdict.path.append(60)
    verdict.tokens.append(5)


def no_tokens(verdict):
    del verdict.tokens[:]


@pytest.mark.parametrize("spoil", [another_state, longer_path, no_tokens])
async def test_a_target_that_answers_with_nonsense_is_as_good_as_gone(spoil):
    async def script(number, verdict, context):
        message = verdict.to_proto()
        if number == 2:
            spoil(message)
        return message

    async with gateway(target=script) as local:
        error = await refused(local, **OFF)
        await local.all_is_free()

    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert error.details().startswith("the target answered with nonsense: ")


@pytest.mark.parametrize("script", [drafters.silent, HONEST, drafters.flooding])
@pytest.mark.parametrize("num_chunks", [0, 1, 3])
async def test_cancelling_frees_everything(script, num_chunks):
    """Before the first chunk, and while chunks come that nobody reads."""
    async with gateway(script, deadline_s=0.01) as local:
        for _ in range(3):
            call = generate(local, new_tokens=4000)
            for _ in range(num_chunks):
                await call.read()
            call.cancel()
            await local.all_is_free()


@pytest.mark.parametrize("target", [waiting, honest], ids=["silent", "answering"])
async def test_a_deadline_that_passes_frees_everything(target):
    """While the target is silent, and while it answers."""
    async with gateway(target=target) as local:
        call = local.stub.Generate(request(4000, **OFF), timeout=0.2)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            async for _ in call:
                pass
        await local.all_is_free()

    assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_two_requests_of_one_id_do_not_meet():
    async with gateway(HONEST) as local:
        answers = await asyncio.gather(*(answer(local, request_id="same") for _ in range(4)))

    assert [token_ids(chunks) for chunks in answers] == [plain_answer()] * 4
    assert len({opened.session_id for opened in local.target.opened}) == 4


async def test_the_gateway_says_what_it_serves():
    """A drafter that is refused is no drafter that a request may name."""
    async with gateway() as local:
        info = await local.stub.GetInfo(pb.GetInfoRequest())

    assert info.model_name == "scripted"
    assert (info.vocab_size, info.max_context_len) == (MODEL.vocab_size, MODEL.max_context_len)
    assert not info.has_chat_template
    assert list(info.drafter_ids) == ["scripted"]
    assert info.default_drafter_id == "scripted"
    assert info.running_requests == 0


async def test_without_a_draft_service_there_are_no_drafters():
    async with gateway(drafter_address=NOBODY) as local:
        info = await local.stub.GetInfo(pb.GetInfoRequest())

    assert (list(info.drafter_ids), info.default_drafter_id) == ([], "")


async def test_a_request_that_is_given_up_before_it_begins_is_no_session(monkeypatch):
    """What is counted as decoding would be taken for load for ever."""
    asked = asyncio.Event()

    async def never(generation):
        asked.set()
        await asyncio.Event().wait()

    async with gateway(HONEST) as local:
        monkeypatch.setattr(local.generator, "_unknown_drafter", never)
        call = generate(local)
        reading = asyncio.ensure_future(call.read())
        await asked.wait()
        assert local.experience.num_sessions == 0
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await local.all_is_free()
        assert local.experience.num_sessions == 0


async def test_every_session_is_counted_while_it_lasts():
    async with gateway(HONEST) as local:
        call = generate(local, new_tokens=400)
        await call.read()
        assert local.experience.num_sessions == 1
        call.cancel()
        await eventually(lambda: local.experience.num_sessions == 0)


async def test_while_no_draft_service_answers_what_was_known_of_drafters_stays():
    async with gateway(HONEST, drafter_address=NOBODY) as local:
        known = local.experience
        known.kinds, known.default_drafter, known.rivals = {"mine": "eagle3"}, "mine", ("ngram",)
        await local.generator._list_rivals()

    assert (known.kinds, known.default_drafter, known.rivals) == (
        {"mine": "eagle3"},
        "mine",
        ("ngram",),
    )
