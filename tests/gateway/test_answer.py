"""An answer ends at exactly the same token, with the same text, however its tokens came."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.answer import Answer, Finish
from gateway.sampling_params import Stopping
from gateway.tokenizer import Tokenizer
from protos.messages import TopLogprobs
from tests.gateway import tiny_tokenizers

EOS = "<|endoftext|>"
TOKENIZERS = {
    "byte_level": Tokenizer(tiny_tokenizers.byte_level(), config={"eos_token": EOS}),
    "byte_fallback": Tokenizer(tiny_tokenizers.byte_fallback()),
    "metaspace": Tokenizer(tiny_tokenizers.metaspace()),
    "word_level": Tokenizer(tiny_tokenizers.word_level()),
}
BYTE_LEVEL = TOKENIZERS["byte_level"]
UNSTOPPED = Stopping(
    max_new_tokens=10_000,
    min_new_tokens=0,
    stop_token_ids=frozenset(),
    stop_strings=(),
    include_stop_strings=False,
)


def encode(text):
    return BYTE_LEVEL.encode(text, add_special_tokens=False)


def answer(tokens, stopping, *, tokenizer=BYTE_LEVEL, sizes=()):
    """Push tokens in groups of the given sizes, the rest one by one; return the chunks."""
    running, chunks, start = Answer(tokenizer, stopping), [], 0
    sizes = iter(sizes)
    while start < len(tokens) and not (chunks and chunks[-1].finish):
        end = start + next(sizes, 1)
        logprobs = [-float(index) for index in range(start, min(end, len(tokens)))]
        tops = [TopLogprobs((index,), (0.0,)) for index in range(start, min(end, len(tokens)))]
        chunks.append(running.push(tokens[start:end], logprobs, tops))
        start = end
    assert running.num_tokens == sum(len(chunk.token_ids) for chunk in chunks)
    assert running.remaining == stopping.max_new_tokens - running.num_tokens
    return chunks


def whole(chunks):
    """Everything that a client may put together from the chunks."""
    return (
        [token for chunk in chunks for token in chunk.token_ids],
        [text for chunk in chunks for text in chunk.texts],
        [logprob for chunk in chunks for logprob in chunk.logprobs],
        [top for chunk in chunks for top in chunk.top_logprobs],
        chunks[-1].finish,
    )


@st.composite
def answers(draw):
    """A tokenizer, tokens of its vocabulary and a way to stop that they may meet."""
    tokenizer = TOKENIZERS[draw(st.sampled_from(sorted(TOKENIZERS)))]
    ids = st.integers(0, tokenizer.vocab_size - 1)
    tokens = draw(st.lists(ids, min_size=1, max_size=24))
    text = tokenizer.decode(tokens)
    cuts = st.integers(0, max(0, len(text) - 1))
    pieces = draw(st.lists(st.tuples(cuts, st.integers(1, 4)), max_size=3))
    stopping = Stopping(
        max_new_tokens=draw(st.integers(1, 30)),
        min_new_tokens=draw(st.integers(0, 6)),
        stop_token_ids=frozenset(draw(st.lists(ids | st.sampled_from(tokens), max_size=2))),
        stop_strings=tuple(filter(None, (text[start : start + n] for start, n in pieces))),
        include_stop_strings=draw(st.booleans()),
    )
    return tokenizer, tokens, stopping


@given(answers(), st.lists(st.integers(1, 8)))
def test_an_answer_does_not_depend_on_how_its_tokens_were_grouped(drawn, sizes):
    """Nor does what came out with each of them."""
    tokenizer, tokens, stopping = drawn

    grouped = answer(tokens, stopping, tokenizer=tokenizer, sizes=sizes)
    single = answer(tokens, stopping, tokenizer=tokenizer)

    assert whole(grouped) == whole(single)


@given(answers(), st.lists(st.integers(1, 8)))
def test_chunks_carry_one_of_everything_for_every_token(drawn, sizes):
    tokenizer, tokens, stopping = drawn

    chunks = answer(tokens, stopping, tokenizer=tokenizer, sizes=sizes)

    taken, _, logprobs, tops, _ = whole(chunks)
    assert taken == tokens[: len(taken)]
    assert logprobs == [-float(index) for index in range(len(taken))]
    assert [top.token_ids for top in tops] == [(index,) for index in range(len(taken))]
    for chunk in chunks:
        assert len(chunk.texts) == len(chunk.token_ids)
        assert chunk.text == "".join(chunk.texts)


@given(answers(), st.lists(st.integers(1, 8)))
def test_an_answer_that_nothing_stops_is_the_text_of_its_tokens(drawn, sizes):
    """Up to the last token that fits, whatever that is the middle of."""
    tokenizer, tokens, stopping = drawn
    most = min(len(tokens), stopping.max_new_tokens)

    chunks = answer(
        tokens, replace(UNSTOPPED, max_new_tokens=most), tokenizer=tokenizer, sizes=sizes
    )

    assert chunks[-1].finish == Finish("length")
    assert "".join(chunk.text for chunk in chunks) == tokenizer.decode(tokens[:most])


ASCII_TOKENS = sorted({token for text in tiny_tokenizers.CORPUS for token in encode(text[:60])})


@given(
    tokens=st.lists(st.sampled_from(ASCII_TOKENS), min_size=1, max_size=16),
    start=st.integers(0, 10),
    length=st.integers(1, 6),
    include=st.booleans(),
)
def test_an_answer_stops_at_the_token_that_completes_a_stop_string(tokens, start, length, include):
    """Not one earlier or later, even if the string began some tokens before."""
    texts = [BYTE_LEVEL.decode(tokens[:count]) for count in range(1, len(tokens) + 1)]
    stop = texts[-1][start : start + length] or "?"
    stopping = replace(UNSTOPPED, stop_strings=(stop,), include_stop_strings=include)

    taken, parts, _, _, finish = whole(answer(tokens, stopping))

    with_stop = [count for count, text in enumerate(texts, start=1) if stop in text]
    assert len(taken) == (with_stop or [len(tokens)])[0]
    assert finish == (Finish("stop", stop_string=stop) if with_stop else None)
    if finish:
        before = texts[-1][: texts[-1].index(stop)]
        assert "".join(parts) == before + (stop if include else "")


@pytest.mark.parametrize("num_stops", [1, 2])
def test_an_answer_stops_at_the_first_stop_token(num_stops):
    """Its text is not part of the answer, and what was held back before it is."""
    first, second = encode(" t")[0], encode("he")[0]
    tokens = [*encode("guesses"), first, second, first]
    stopping = replace(UNSTOPPED, stop_token_ids=frozenset([first, second][:num_stops]))

    (chunk,) = answer(tokens, stopping, sizes=[99])

    assert chunk.text == "guesses"
    assert chunk.token_ids == (*encode("guesses"), first)
    assert chunk.finish == Finish("stop", stop_token_id=first)


def test_a_stop_token_lets_out_what_may_have_become_a_stop_string():
    (eos,) = BYTE_LEVEL.eos_token_ids
    stopping = replace(UNSTOPPED, stop_token_ids=frozenset([eos]), stop_strings=("guesses a lot",))

    (chunk,) = answer([*encode("he guesses a"), eos], stopping, sizes=[99])

    assert (chunk.text, chunk.finish) == ("he guesses a", Finish("stop", stop_token_id=eos))


def test_the_end_of_sequence_is_an_ordinary_token_for_who_ignores_it():
    (eos,) = BYTE_LEVEL.eos_token_ids
    tokens = [*encode("a"), eos, *encode("b")]

    (chunk,) = answer(tokens, replace(UNSTOPPED, max_new_tokens=len(tokens)), sizes=[99])

    assert (chunk.token_ids, chunk.text) == (tuple(tokens), "ab")


@pytest.mark.parametrize("most", [1, 2, 3])
def test_an_answer_has_no_token_too_many(most):
    tokens = encode("The drafter guesses a few tokens")

    (chunk,) = answer(tokens, replace(UNSTOPPED, max_new_tokens=most), sizes=[99])

    assert chunk.token_ids == tuple(tokens[:most])
    assert chunk.finish == Finish("length")


def test_a_stop_on_the_last_token_that_fits_is_a_stop():
    tokens = encode("he")
    stopping = replace(UNSTOPPED, max_new_tokens=len(tokens), stop_token_ids=frozenset(tokens[-1:]))

    (chunk,) = answer(tokens, stopping, sizes=[99])

    assert chunk.finish == Finish("stop", stop_token_id=tokens[-1])


@pytest.mark.parametrize("kind", ["stop token", "stop string"])
def test_nothing_stops_an_answer_before_it_has_its_least_tokens(kind):
    """The first token that may is the one after them."""
    token = encode("a")[0]
    stops = {"stop_token_ids": frozenset([token])}
    if kind == "stop string":
        stops = {"stop_strings": ("a",)}
    stopping = replace(UNSTOPPED, min_new_tokens=3, **stops)

    (chunk,) = answer([token] * 9, stopping, sizes=[99])

    assert chunk.token_ids == (token,) * 4
    assert chunk.text == "aaa"
    assert chunk.finish.reason == "stop"


def test_a_character_is_never_cut_in_half():
    """Its text comes with the last of its tokens, or as U+FFFD if that never came."""
    tokens = encode("💡")
    assert len(tokens) == 4

    whole_character = answer([*tokens, *encode("a")], UNSTOPPED)
    cut = answer(tokens, replace(UNSTOPPED, max_new_tokens=3))

    assert [chunk.text for chunk in whole_character] == ["", "", "", "💡", "a"]
    assert [chunk.text for chunk in cut] == ["", "", "\ufffd"]


def test_a_stop_string_that_only_the_end_of_the_answer_completes_is_a_stop():
    """A run of byte pieces is text once nothing can follow it."""
    tokenizer = TOKENIZERS["byte_fallback"]
    first = tokenizer.encode("a", add_special_tokens=False)
    byte = tokenizer.encode("!", add_special_tokens=False)[-1]
    most = len(first) + 1
    stopping = replace(UNSTOPPED, max_new_tokens=most, stop_strings=("!",))

    stopped = answer([*first, byte], stopping, tokenizer=tokenizer)
    forced = answer([*first, byte], replace(stopping, min_new_tokens=most), tokenizer=tokenizer)

    assert "".join(chunk.text for chunk in stopped) == "a"
    assert stopped[-1].finish == Finish("stop", stop_string="!")
    assert "".join(chunk.text for chunk in forced) == "a!"
    assert forced[-1].finish == Finish("length")
