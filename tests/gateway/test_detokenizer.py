"""Streamed text equals the decoded whole, and no character of it is ever taken back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models
from tokenizers import Tokenizer as Backend

from gateway.detokenizer import IncrementalDetokenizer
from gateway.tokenizer import Tokenizer
from tests.gateway.tiny_tokenizers import byte_fallback, byte_level, metaspace, word_level

TOKENIZERS = {
    "byte_level": Tokenizer(byte_level()),
    "byte_fallback": Tokenizer(byte_fallback()),
    "byte_fallback_unstripped": Tokenizer(byte_fallback(strip=False)),
    "metaspace_always": Tokenizer(metaspace("always")),
    "metaspace_first": Tokenizer(metaspace("first")),
    "metaspace_never": Tokenizer(metaspace("never")),
    "no_decoder": Tokenizer(word_level()),
}

every_tokenizer = pytest.mark.parametrize("name", TOKENIZERS)


def ids_of(tokenizer):
    """Sequences of any ids, a few of them outside the vocabulary."""
    return st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=24)


def in_bursts(data, ids):
    """`ids` cut as rounds of speculation bring them, empty ones included."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))
    return [ids[a:b] for a, b in zip([0, *cuts], [*cuts, len(ids)], strict=True)]


@every_tokenizer
@given(data=st.data(), skip_special_tokens=st.booleans())
def test_pushes_and_flush_equal_decode(name, data, skip_special_tokens):
    """However the ids are split, the text is that of `tokenizers`."""
    tokenizer = TOKENIZERS[name]
    ids = data.draw(ids_of(tokenizer))
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip_special_tokens)

    text = "".join(detokenizer.push(burst) for burst in in_bursts(data, ids)) + detokenizer.flush()

    assert text == tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)


@every_tokenizer
@given(data=st.data())
def test_pushed_text_never_changes(name, data):
    """Text shown after some tokens begins the text of every continuation."""
    tokenizer = TOKENIZERS[name]
    ids, continuation = data.draw(ids_of(tokenizer)), data.draw(ids_of(tokenizer))

    shown = IncrementalDetokenizer(tokenizer).push(ids)

    assert tokenizer.decode(ids + continuation).startswith(shown)


@given(data=st.data())
def test_byte_level_holds_back_at_most_one_unfinished_character(data):
    tokenizer = TOKENIZERS["byte_level"]
    ids = data.draw(ids_of(tokenizer))

    shown = IncrementalDetokenizer(tokenizer).push(ids)

    assert tokenizer.decode(ids) in (shown, shown + "\ufffd")


@given(data=st.data())
def test_byte_fallback_holds_back_only_the_last_run_of_bytes(data):
    tokenizer = TOKENIZERS["byte_fallback"]
    ids = data.draw(ids_of(tokenizer))

    ended = [*ids, byte_fallback().token_to_id("h")]

    assert IncrementalDetokenizer(tokenizer).push(ended) == tokenizer.decode(ended)


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
@given(text=st.text("hello wor😀é漢\n", max_size=20))
def test_real_text_is_never_shown_broken(name, text):
    """Emoji cut over several tokens come out whole, token by token."""
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text, add_special_tokens=True)
    detokenizer = IncrementalDetokenizer(tokenizer)

    shown = [detokenizer.push([token_id]) for token_id in ids] + [detokenizer.flush()]

    assert not any("\ufffd" in part for part in shown)
    assert "".join(shown) == text


def test_an_emoji_appears_with_its_last_byte():
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("😀", add_special_tokens=False)
    detokenizer = IncrementalDetokenizer(tokenizer)

    assert len(ids) == 4
    assert [detokenizer.push([token_id]) for token_id in ids] == ["", "", "", "😀"]


def test_text_cut_off_inside_a_character_ends_with_the_replacement_character():
    tokenizer = TOKENIZERS["byte_level"]
    detokenizer = IncrementalDetokenizer(tokenizer)
    detokenizer.push(tokenizer.encode("😀", add_special_tokens=False)[:2])

    assert detokenizer.flush() == "\ufffd"


def test_skipped_special_tokens_are_shown_when_asked_for():
    tokenizer = TOKENIZERS["byte_level"]
    ids = tokenizer.encode("<|im_start|>hi<|im_end|>", add_special_tokens=False)

    assert IncrementalDetokenizer(tokenizer).push(ids) == "hi"
    shown = IncrementalDetokenizer(tokenizer, skip_special_tokens=False).push(ids)
    assert shown == "<|im_start|>hi<|im_end|>"


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.WordPiece(),
        decoders.BPEDecoder(),
        decoders.Strip(" ", 1, 0),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "c")]),
        decoders.Replace(Regex("a+"), "b"),
    ],
    ids=str,
)
def test_a_decoder_that_cannot_be_streamed_is_refused(decoder):
    """Refused with its name, before a session shows wrong text."""
    backend = Backend(models.BPE({"a": 0}, []))
    backend.decoder = decoder

    with pytest.raises(ValueError, match="cannot be streamed; known are ByteLevel"):
        IncrementalDetokenizer(Tokenizer(backend))


@pytest.mark.model
def test_the_embedded_model_streams_its_own_vocabulary(smollm2):
    """Every token of the real vocabulary, in id order and in chat form."""
    tokenizer = Tokenizer.from_directory(smollm2)
    ids = list(range(tokenizer.vocab_size)) + tokenizer.encode("é😀漢", add_special_tokens=False)
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=False)

    text = "".join(detokenizer.push([token_id]) for token_id in ids) + detokenizer.flush()

    assert text == tokenizer.decode(ids, skip_special_tokens=False)
