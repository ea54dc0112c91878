"""A request is checked whole before anything runs, and every default is filled in."""

import pytest

from gateway.chat_template import ChatTemplate
from gateway.plans import NO_DRAFTS, NO_LIMIT
from gateway.policy import FIXED_STEPS, Wish
from gateway.sampling_params import DEFAULT_MAX_NEW_TOKENS, ModelText, parse_request
from gateway.tokenizer import Tokenizer
from protos import gateway_pb2 as pb
from protos.messages import MAX_TREE_NODES, Plan, SamplingParams
from protos.speculation_pb2 import SamplingParams as WireSampling
from tests.gateway import tiny_tokenizers

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }} {{ m.content }}<|im_end|>{% endfor %}"
TOKENIZER = Tokenizer(tiny_tokenizers.byte_level(), config={"eos_token": "<|endoftext|>"})
(EOS,) = TOKENIZER.eos_token_ids
VOCAB_SIZE = TOKENIZER.vocab_size
MODEL = ModelText(TOKENIZER, ChatTemplate(TEMPLATE), VOCAB_SIZE, max_context_len=64)
PROMPT = pb.TokenIds(ids=[5, 6, 7, 8])
_Mode = pb.Speculation.Mode


def parse(model=MODEL, **fields):
    return parse_request(pb.GenerateRequest(**{"token_ids": PROMPT} | fields), model)


def stopping(**fields):
    return {"stopping": pb.StoppingCriteria(**fields)}


def sampling(**fields):
    return {"sampling": WireSampling(**fields)}


def fixed(**fields):
    return {"speculation": pb.Speculation(mode=_Mode.MODE_FIXED, **fields)}


def test_a_request_that_says_nothing_gets_the_defaults():
    parsed = parse()

    assert parsed.prompt == (5, 6, 7, 8)
    assert parsed.sampling == SamplingParams(seed=parsed.sampling.seed)
    assert parsed.stopping.max_new_tokens == 60
    assert parsed.stopping.min_new_tokens == 0
    assert parsed.stopping.stop_token_ids == {EOS}
    assert parsed.stopping.stop_strings == ()
    assert not parsed.stopping.include_stop_strings
    assert parsed.speculation == Wish("auto", NO_LIMIT)
    assert parsed.drafter_id == ""


def test_seeds_and_request_ids_are_drawn_if_left_out():
    """Over all 64 bits."""
    parsed = [parse() for _ in range(64)]

    assert len({one.request_id for one in parsed}) == 64
    assert len({one.sampling.seed for one in parsed}) == 64
    assert max(one.sampling.seed for one in parsed) > 2**60


@pytest.mark.parametrize("seed", [0, 7, 2**64 - 1])
def test_a_seed_that_is_given_is_kept(seed):
    """Zero is a seed."""
    assert parse(**sampling(seed=seed)).sampling.seed == seed


def test_what_is_given_is_kept():
    parsed = parse(
        request_id="mine",
        sampling=WireSampling(temperature=0, top_k=5, logit_bias={3: -1.5}, top_logprobs=2),
        stopping=pb.StoppingCriteria(
            max_new_tokens=9, stop_token_ids=[3], stop_strings=["x"], include_stop_strings=True
        ),
        speculation=pb.Speculation(drafter_id="eagle"),
    )

    assert parsed.request_id == "mine"
    assert parsed.drafter_id == "eagle"
    assert (parsed.sampling.temperature, parsed.sampling.top_k) == (0, 5)
    assert (parsed.sampling.logit_bias, parsed.sampling.top_logprobs) == ({3: -1.5}, 2)
    assert parsed.stopping.max_new_tokens == 9
    assert parsed.stopping.stop_token_ids == {EOS, 3}
    assert parsed.stopping.stop_strings == ("x",)
    assert parsed.stopping.include_stop_strings


def test_an_answer_has_room_for_the_context_but_no_more_than_the_default():
    huge = ModelText(TOKENIZER, ChatTemplate(None), VOCAB_SIZE, max_context_len=10**6)

    assert parse(**stopping(max_new_tokens=60)).stopping.max_new_tokens == 60
    assert parse(huge).stopping.max_new_tokens == DEFAULT_MAX_NEW_TOKENS
    more = parse(huge, **stopping(max_new_tokens=DEFAULT_MAX_NEW_TOKENS + 1))
    assert more.stopping.max_new_tokens == DEFAULT_MAX_NEW_TOKENS + 1


def test_the_end_of_sequence_may_be_ignored_and_other_stops_still_count():
    parsed = parse(**stopping(ignore_eos=True, stop_token_ids=[9]))

    assert parsed.stopping.stop_token_ids == {9}


def test_the_target_must_not_choose_a_stop_token_before_the_least_tokens():
    parsed = parse(**stopping(min_new_tokens=3, stop_token_ids=[9, 2]))

    assert parsed.sampling.min_new_tokens == 3
    assert parsed.sampling.suppressed_token_ids == tuple(sorted([EOS, 9, 2]))


def test_no_token_is_suppressed_without_least_tokens():
    assert parse(**stopping(stop_token_ids=[9])).sampling.suppressed_token_ids == ()


@pytest.mark.parametrize(
    ("speculation", "wish"),
    [
        (pb.Speculation(), Wish("auto", NO_LIMIT)),
        (pb.Speculation(mode=_Mode.MODE_AUTO), Wish("auto", NO_LIMIT)),
        (pb.Speculation(mode=_Mode.MODE_AUTO, steps=3), Wish("auto", Plan(3, 63, 64))),
        (pb.Speculation(mode=_Mode.MODE_OFF, steps=3), Wish("off", NO_DRAFTS)),
        (fixed()["speculation"], Wish("fixed", Plan(FIXED_STEPS, 1, FIXED_STEPS + 1))),
        (fixed(steps=3)["speculation"], Wish("fixed", Plan(3, 1, 4))),
        (fixed(steps=0)["speculation"], Wish("fixed", Plan(0, 1, 1))),
        (fixed(steps=63)["speculation"], Wish("fixed", Plan(63, 1, 64))),
        (fixed(steps=3, top_k=4)["speculation"], Wish("fixed", Plan(3, 4, MAX_TREE_NODES))),
        (fixed(steps=3, top_k=4, draft_tokens=9)["speculation"], Wish("fixed", Plan(3, 4, 9))),
    ],
)
def test_what_is_wanted_of_speculation_is_what_the_mode_says(speculation, wish):
    """A fixed chain has a node for each step, and its root; auto has limits only if it is given."""
    assert parse(speculation=speculation).speculation == wish


def test_text_is_wrapped_as_the_tokenizer_says_and_chats_as_the_template_says():
    llama = Tokenizer(tiny_tokenizers.byte_fallback())
    model = ModelText(llama, ChatTemplate("{{ messages[0].content }}"), llama.vocab_size, 64)
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="he")])

    as_text = parse_request(pb.GenerateRequest(text="he"), model).prompt
    as_chat = parse_request(pb.GenerateRequest(chat=chat), model).prompt

    assert as_text == tuple(llama.encode("he", add_special_tokens=True))
    assert as_text == (1, *as_chat)


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ([], "chat needs at least one message, got none"),
        (["user", ""], "role must be one of system, user, assistant, got ''"),
        (["tool"], "got 'tool'"),
    ],
)
def test_a_chat_has_messages_of_known_roles(roles, message):
    chat = pb.Chat(messages=[pb.ChatMessage(role=role, content="he") for role in roles])
    with pytest.raises(ValueError, match=message):
        parse_request(pb.GenerateRequest(chat=chat), MODEL)


def test_a_chat_is_rendered_with_its_special_tokens():
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="hello")])

    prompt = parse_request(pb.GenerateRequest(chat=chat), MODEL).prompt

    assert list(prompt) == TOKENIZER.encode(
        "<|im_start|>user hello<|im_end|>", add_special_tokens=False
    )


REFUSED = {
    "no prompt": ({"token_ids": None}, "prompt must be text, token_ids or chat, got nothing"),
    "no tokens": ({"token_ids": pb.TokenIds()}, "prompt needs at least one token, got none"),
    "prompt ids": (
        {"token_ids": pb.TokenIds(ids=[1, VOCAB_SIZE])},
        rf"prompt token_ids must be in \[0, {VOCAB_SIZE}\), got {VOCAB_SIZE}",
    ),
    "prompt too long": (
        {"token_ids": pb.TokenIds(ids=[1] * 64)},
        "prompt has 64 tokens, the context takes 64 with at least one of the answer",
    ),
    "request_id": ({"request_id": "a b"}, "request_id must be 1 to 64 .*got 'a b'"),
    "drafter_id": (
        {"speculation": pb.Speculation(drafter_id="a b")},
        "drafter_id must be 1 to 64 .*got 'a b'",
    ),
    "no new tokens": (
        stopping(max_new_tokens=0),
        r"max_new_tokens must be in \[1, 60\] after a prompt of 4 tokens, got 0",
    ),
    "too many new tokens": (stopping(max_new_tokens=61), r"max_new_tokens .*\[1, 60\].*, got 61"),
    "min over max": (
        stopping(max_new_tokens=5, min_new_tokens=6),
        "min_new_tokens must be at most max_new_tokens 5, got 6",
    ),
    "min over room": (stopping(min_new_tokens=61), "min_new_tokens must be .* 60, got 61"),
    "many stop strings": (stopping(stop_strings=["x"] * 17), "at most 16 stop_strings, got 17"),
    "empty stop string": (stopping(stop_strings=["x", ""]), "stop_strings have 1 to 256 .*got 0"),
    "long stop string": (stopping(stop_strings=["x" * 257]), "stop_strings .*256.*, got 257"),
    "many stop tokens": (
        stopping(stop_token_ids=[1] * 257),
        "at most 256 stop_token_ids, got 257",
    ),
    "stop token": (
        stopping(stop_token_ids=[VOCAB_SIZE]),
        rf"stop_token_ids must be in \[0, {VOCAB_SIZE}\), got {VOCAB_SIZE}",
    ),
    "temperature": (sampling(temperature=100.5), r"temperature must be in \[0, 100\], got 100.5"),
    "top_k": (sampling(top_k=-2), r"top_k must be in \[-1, vocabulary\], got -2"),
    "top_p": (sampling(top_p=0), r"top_p must be in \(0, 1\], got 0.0"),
    "min_p": (sampling(min_p=1.5), r"min_p must be in \[0, 1\], got 1.5"),
    "presence": (sampling(presence_penalty=3), r"presence_penalty must be in \[-2, 2\], got 3.0"),
    "frequency": (sampling(frequency_penalty=-3), r"frequency_penalty .*\[-2, 2\], got -3.0"),
    "repetition": (sampling(repetition_penalty=0), r"repetition_penalty .*\(0, 10\], got 0.0"),
    "logit_bias": (sampling(logit_bias={5: 101}), r"logit_bias\[5\] .*\[-100, 100\], got 101.0"),
    "many biases": (
        sampling(logit_bias=dict.fromkeys(range(1025), 1.0)),
        "logit_bias takes at most 1024 entries, got 1025",
    ),
    "top_logprobs": (sampling(top_logprobs=21), r"top_logprobs must be in \[0, 20\], got 21"),
    "suppressed": (sampling(suppressed_token_ids=[1]), "say stopping.min_new_tokens"),
    "sampling min": (sampling(min_new_tokens=0), "say stopping.min_new_tokens"),
    "steps": (fixed(steps=64), r"speculation.steps must be in \[0, 63\], got 64"),
    "no top_k": (fixed(top_k=0), r"speculation.top_k must be in \[1, 63\], got 0"),
    "no nodes": (fixed(draft_tokens=0), r"speculation.draft_tokens must be in \[1, 64\], got 0"),
    "nodes": (fixed(draft_tokens=65), r"speculation.draft_tokens must be in \[1, 64\], got 65"),
    "mode": ({"speculation": pb.Speculation(mode=9)}, "speculation.mode .*MODE_FIXED.*, got 9"),
}


@pytest.mark.parametrize(("fields", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_bad_field_is_refused_with_its_value_and_its_limit(fields, reason):
    with pytest.raises(ValueError, match=reason):
        parse(**fields)


def test_a_chat_that_the_template_refuses_is_refused_with_its_words():
    refusing = ChatTemplate("{{ raise_exception('roles must alternate') }}")
    model = ModelText(TOKENIZER, refusing, VOCAB_SIZE, 64)
    chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="x")])

    with pytest.raises(ValueError, match="roles must alternate"):
        parse_request(pb.GenerateRequest(chat=chat), model)
