"""Bodies, parsed: what is asked for, or a reason that names the field, the value and the limit."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.asked import parse
from gateway.http.chat import CHAT, ChatFields
from gateway.http.completion import COMPLETION, CompletionFields
from gateway.http.error import HttpError
from gateway.http.server import MAX_BODY
from gateway.http.unsupported import _NEUTRAL, _PASSED_OVER
from protos import gateway_pb2 as pb

USER = {"role": "user", "content": "hello"}


def completion(**fields):
    return parse(json.dumps({"prompt": "x", **fields}).encode(), COMPLETION.ask)


def chat(**fields):
    return parse(json.dumps({"messages": [USER], **fields}).encode(), CHAT.ask)


def refused(body, api=COMPLETION):
    with pytest.raises(HttpError) as error:
        parse(body if isinstance(body, bytes) else json.dumps(body).encode(), api.ask)
    assert error.value.status == 400
    return error.value


def test_every_field_finds_its_place_in_the_request_of_grpc():
    asked = completion(
        max_tokens=9,
        min_tokens=2,
        stop=["a", "b"],
        stop_token_ids=[3],
        include_stop_str_in_output=True,
        ignore_eos=True,
        seed=2**64 - 1,
        temperature=0.5,
        top_p=0.25,
        top_k=5,
        min_p=0.125,
        presence_penalty=1.5,
        frequency_penalty=-1.5,
        repetition_penalty=1.25,
        logit_bias={"7": -2},
        logprobs=4,
        priority=-1,
        recordable=True,
        speculation={"mode": "fixed", "steps": 2, "top_k": 1, "draft_tokens": 3, "drafter_id": "d"},
    )

    assert asked.generation == pb.GenerateRequest(
        text="x",
        sampling={
            "seed": 2**64 - 1,
            "temperature": 0.5,
            "top_p": 0.25,
            "top_k": 5,
            "min_p": 0.125,
            "presence_penalty": 1.5,
            "frequency_penalty": -1.5,
            "repetition_penalty": 1.25,
            "logit_bias": {7: -2},
            "top_logprobs": 4,
        },
        stopping={
            "max_new_tokens": 9,
            "min_new_tokens": 2,
            "stop_strings": ["a", "b"],
            "stop_token_ids": [3],
            "include_stop_strings": True,
            "ignore_eos": True,
        },
        speculation={
            "mode": pb.Speculation.MODE_FIXED,
            "steps": 2,
            "top_k": 1,
            "draft_tokens": 3,
            "drafter_id": "d",
        },
        priority=-1,
        recordable=True,
    )


def test_what_is_left_out_or_null_is_left_to_the_defaults():
    """All but OpenAI's 16 tokens of a completion."""
    left_out = chat().generation
    nulls = dict.fromkeys([*ChatFields.model_fields, *_NEUTRAL, *_PASSED_OVER])

    assert chat(**{**nulls, "messages": [USER]}).generation == left_out
    assert left_out.sampling == type(left_out.sampling)()
    assert left_out.stopping == pb.StoppingCriteria()
    assert completion().generation.stopping == pb.StoppingCriteria(max_new_tokens=16)


def test_a_chat_has_turns_of_text():
    """Parts are lines; the developer is who templates call the system."""
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    turns = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]
    said = {"role": "assistant", "content": "yes", "refusal": None, "tool_calls": [], "name": "b"}

    messages = chat(messages=[*turns, said]).generation.chat.messages

    assert [(one.role, one.content) for one in messages] == [
        ("system", "be brief"),
        ("user", "one\ntwo"),
        ("assistant", "yes"),
    ]


def test_the_newer_name_of_the_longest_answer_wins():
    assert chat(max_tokens=5).generation.stopping.max_new_tokens == 5
    both = chat(max_tokens=5, max_completion_tokens=6)
    assert both.generation.stopping.max_new_tokens == 6


@pytest.mark.parametrize(
    ("fields", "wanted", "top"),
    [({}, None, 0), ({"logprobs": True}, 0, 0), ({"logprobs": True, "top_logprobs": 3}, 3, 3)],
)
def test_a_chat_may_want_logprobs_of_the_chosen_token_alone(fields, wanted, top):
    asked = chat(**fields)

    assert (asked.num_logprobs, asked.generation.sampling.top_logprobs) == (wanted, top)


@pytest.mark.parametrize("prompt", [[1, 2], [[1, 2]]])
def test_a_prompt_may_be_token_ids(prompt):
    assert list(completion(prompt=prompt).generation.token_ids.ids) == [1, 2]


@pytest.mark.parametrize(
    ("body", "param", "reason"),
    [
        ({}, "prompt", "prompt: Field required"),
        ({"prompt": ["a", "b"]}, "prompt", "one prompt a request, got 2"),
        ({"prompt": {}}, "prompt", "must be a text or a list of token ids, got {}"),
        ({"prompt": [1, -2]}, "prompt.1", "greater than or equal to 0, got -2"),
        ({"prompt": "x", "seed": -1}, "seed", "greater than or equal to 0, got -1"),
        ({"prompt": "x", "seed": 10**400}, "seed", "less than 18446744073709551616"),
        ({"prompt": "x", "temperature": "1"}, "temperature", "a valid number, got '1'"),
        ({"prompt": "x", "temperature": 1e300}, "temperature", "got 1e+300"),
        ({"prompt": "x", "logit_bias": {"-1": 5}}, "logit_bias", "token ids, got '-1'"),
        ({"prompt": "x", "logit_bias": {str(i): 0 for i in range(1025)}}, "logit_bias", "got 1025"),
        ({"prompt": "x", "stop": ["a", 1]}, "stop.1", "a valid string, got 1"),
        ({"prompt": "x", "logprobs": 21}, "logprobs", "less than or equal to 20, got 21"),
        ({"prompt": "x", "temperatur": 1}, "temperatur", "not a field we know"),
        ({"prompt": "x", "speculation": 3}, "speculation", "an object, got 3"),
        ({"prompt": "x", "speculation": {"mode": "?"}}, None, "one of auto, off, fixed, got '?'"),
        ({"prompt": "x", "stream_options": {}}, None, "stream_options needs stream"),
        ({"prompt": "x", "n": 2}, None, "n is not supported (only 1), got 2"),
        ({"prompt": "x", "echo": True}, None, "echo is not supported (only False), got True"),
    ],
)
def test_a_completion_is_refused_with_the_reason(body, param, reason):
    error = refused(body)

    assert error.param == param
    assert reason in error.message
    assert len(error.message) < 300


IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"messages": []}, "at least 1 item"),
        ({"messages": [{"role": "user"}]}, "messages.0.content: Field required"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "only parts of type text"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "got 'tool'"),
        ({"messages": [{**USER, "tool_calls": [{}]}]}, "tool_calls is not supported"),
        ({"tools": [{"type": "function"}]}, "tools is not supported"),
        ({"response_format": {"type": "json_object"}}, "response_format is not supported"),
        ({"top_logprobs": 3}, "top_logprobs 3 needs logprobs"),
    ],
)
def test_a_chat_is_refused_for_what_would_be_missing(fields, reason):
    assert reason in refused({"messages": [USER], **fields}, CHAT).message


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff", b'{"prompt": "\\ud800"}', b'{"prompt": NaN}', b"[" * 10**5, b'"x"', b"[]"],
)
def test_what_is_no_json_object_is_refused(body):
    assert "the body" in refused(body).message


def filled(head, entry, tail):
    """Return a body of nearly the largest size, of equal entries."""
    count = (MAX_BODY - len(head) - len(tail)) // (len(entry) + 1)
    return head + b",".join([entry] * count) + tail


@pytest.mark.parametrize(
    ("api", "body"),
    [
        (COMPLETION, filled(b'{"prompt":[', b"-1", b"]}")),
        (COMPLETION, filled(b'{"prompt":"x","stop":[', b"1", b"]}")),
        (CHAT, filled(b'{"messages":[', b"{}", b"]}")),
        (CHAT, filled(b'{"messages":[', b'{"role":"user","content":""}', b"]}")),
    ],
    ids=["ids", "stops", "messages", "right messages"],
)
def test_a_large_body_that_is_wrong_everywhere_is_refused_once(api, body):
    """Telling all that is wrong took a minute, and three gigabytes."""
    started = time.process_time()
    refused(body, api)

    assert time.process_time() - started < 10


@pytest.mark.parametrize("field", [b"", b'"speculation":'])
def test_an_object_has_a_bounded_number_of_fields(field):
    names = b",".join(b'"k%d":1' % number for number in range(101))
    body = b'{"prompt":"x",' + field + (b"{" + names + b"}" if field else names) + b"}"

    assert "at most 100 fields" in refused(body).message


def parsed(body, api):
    try:
        return parse(body, api.ask)
    except HttpError as error:
        return error


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["role", "content", "type", "text", "mode", "1", ""]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
NAMES = sorted({*ChatFields.model_fields, *CompletionFields.model_fields, *_NEUTRAL, "x"})


@pytest.mark.parametrize("api", [CHAT, COMPLETION], ids=["chat", "completion"])
@given(odd=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=3), whole=st.booleans())
def test_an_odd_body_is_taken_or_refused_and_nothing_else(api, odd, whole):
    """It ends as a request or as a 400 with a reason: never as an error of ours."""
    name = "messages" if api is CHAT else "prompt"
    body = {name: [USER] if api is CHAT else "x"} | odd if whole else odd
    outcome = parsed(json.dumps(body).encode(), api)

    if isinstance(outcome, HttpError):
        assert outcome.status == 400
        assert outcome.message
    else:
        assert outcome.generation.WhichOneof("prompt")


@given(body=st.binary(max_size=40))
def test_bytes_of_any_kind_are_refused(body):
    with pytest.raises(HttpError):
        parse(body, COMPLETION.ask)
