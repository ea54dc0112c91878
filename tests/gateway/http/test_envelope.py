"""Answers in OpenAI's shapes, as its own types read them."""

import math

import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway.http.asked import Asked
from gateway.http.chat import CHAT
from gateway.http.completion import COMPLETION
from gateway.http.envelope import Envelope
from gateway.http.reply import in_json
from gateway.http.token_logprobs import TokenTexts
from protos import gateway_pb2 as pb
from tests.gateway.local_gateway import TOKENIZER

# A whole word, and the first byte of a longer character.
WORD, PART = 40, TOKENIZER.encode("é", add_special_tokens=False)[0]
STATS = {"rounds": 4, "drafted": 6, "accepted": 3, "accept_length": 1.75, "drafter_id": "mine"}
RESPONSES = [
    pb.GenerateResponse(
        request_id="r",
        prompt_info=pb.PromptInfo(token_ids=[1, 2, 3], seed=7),
        token_ids=[WORD],
        text=TOKENIZER.token_text(WORD),
        logprobs=[-0.5],
        top_logprobs=[{"token_ids": [50, WORD], "logprobs": [-0.25, -0.5]}],
    ),
    pb.GenerateResponse(
        request_id="r",
        token_ids=[PART],
        logprobs=[-math.inf],
        top_logprobs=[{"token_ids": [50, 51], "logprobs": [-0.25, -1.0]}],
        finish=pb.FinishInfo(
            reason=pb.FinishInfo.REASON_STOP,
            stop_string="!",
            usage=pb.Usage(prompt_tokens=3, completion_tokens=2, cached_prompt_tokens=1),
            speculation=pb.SpeculationStats(
                **STATS, plans=[{"plan": {"steps": 2, "top_k": 1, "draft_tokens": 3}, "rounds": 4}]
            ),
        ),
    ),
]


def envelope(api, num_logprobs=2, **wishes):
    usual = {"include_usage": False, "token_ids": False, "timeout_s": None}
    asked = Asked(
        pb.GenerateRequest(),
        model=None,
        stream=False,
        num_logprobs=num_logprobs,
        **(usual | wishes),
    )
    return Envelope(api, asked, "tiny", TokenTexts(TOKENIZER))


def text(token):
    return TOKENIZER.token_text(token)


def test_a_chat_is_what_openai_calls_one():
    whole = ChatCompletion.model_validate(envelope(CHAT).whole(RESPONSES), strict=True)

    assert (whole.id, whole.model) == ("chatcmpl-r", "tiny")
    (choice,) = whole.choices
    assert choice.message.content == text(WORD)
    assert (choice.finish_reason, choice.stop_reason) == ("stop", "!")
    first, second = choice.logprobs.content
    assert (first.token, first.logprob, bytes(first.bytes).decode()) == (
        text(WORD),
        -0.5,
        text(WORD),
    )
    assert [(top.token, top.logprob) for top in first.top_logprobs] == [
        (text(50), -0.25),
        (text(WORD), -0.5),
    ]
    assert (second.token, second.bytes, second.logprob) == ("\ufffd", None, -9999.0)
    assert whole.usage.total_tokens == 5
    assert whole.usage.prompt_tokens_details.cached_tokens == 1


def test_a_completion_is_what_openai_calls_one():
    whole = Completion.model_validate(envelope(COMPLETION).whole(RESPONSES), strict=True)

    assert (whole.id, whole.object) == ("cmpl-r", "text_completion")
    logprobs = whole.choices[0].logprobs
    assert logprobs.tokens == [text(WORD), "\ufffd"]
    assert logprobs.token_logprobs == [-0.5, -9999.0]
    assert logprobs.text_offset == [0, len(text(WORD))]
    # The chosen token is told, too, where it is not among the likeliest.
    assert logprobs.top_logprobs == [
        {text(50): -0.25, text(WORD): -0.5},
        {text(50): -0.25, text(51): -1.0, "\ufffd": -9999.0},
    ]


@pytest.mark.parametrize("api", [CHAT, COMPLETION], ids=["chat", "completion"])
def test_chunks_put_together_are_the_whole(api):
    whole, parts = envelope(api), envelope(api, include_usage=True)
    expected = whole.whole(RESPONSES)
    chunks = [parts.chunk(response) for response in RESPONSES]
    totals = parts.totals(RESPONSES[-1])

    logprobs = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    for name, joined in expected["choices"][0]["logprobs"].items():
        if joined is not None:
            assert [one for part in logprobs for one in part[name]] == joined
    assert chunks[0]["choices"][0]["finish_reason"] is None
    assert chunks[1]["choices"][0]["finish_reason"] == "stop"
    for name in ("usage", "speculation", "seed"):
        assert totals[name] == expected[name]
    if api is CHAT:
        for chunk in (*chunks, totals):
            ChatCompletionChunk.model_validate(chunk, strict=True)
        assert [chunk["choices"][0]["delta"].get("role") for chunk in chunks] == ["assistant", None]


def test_what_speculation_did_is_told_under_a_name_of_ours():
    whole = envelope(CHAT).whole(RESPONSES)

    assert whole["seed"] == 7
    assert STATS.items() <= whole["speculation"].items()
    assert whole["speculation"]["plans"] == [
        {"steps": 2, "top_k": 1, "draft_tokens": 3, "rounds": 4}
    ]


def test_the_totals_of_an_answer_of_one_chunk_are_not_counted_twice():
    only = pb.GenerateResponse()
    for response in RESPONSES:
        only.MergeFrom(response)
    parts = envelope(CHAT)
    parts.chunk(only)

    assert len(parts.totals(only)["speculation"]["plans"]) == 1


def test_what_was_not_asked_for_is_not_told():
    choice = envelope(CHAT, num_logprobs=None).whole(RESPONSES)["choices"][0]

    assert choice["logprobs"] is None
    assert "token_ids" not in choice


def test_tokens_are_told_if_asked_for():
    choice = envelope(CHAT, token_ids=True).whole(RESPONSES)["choices"][0]

    assert choice["token_ids"] == [WORD, PART]
    assert choice["prompt_token_ids"] == [1, 2, 3]


def test_a_text_that_is_not_the_models_says_so():
    simulated = pb.GenerateResponse()
    simulated.CopyFrom(RESPONSES[0])
    simulated.simulated = True

    assert envelope(CHAT).chunk(simulated)["simulated"] is True
    assert "simulated" not in envelope(CHAT).chunk(RESPONSES[0])


def test_json_is_compact_and_has_no_infinity():
    assert in_json({"é": 1}) == '{"é":1}'.encode()
    with pytest.raises(ValueError, match="Out of range"):
        in_json(math.inf)
