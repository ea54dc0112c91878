"""The converted tokenizer gives the ids that the GGUF's own engine gives.

`LLAMA_CPP_IDS` was read off llama.cpp b9190 (`llama_tokenize`, parse_special on) on the embedded
model's GGUF file. `reference_ids` is byte pair encoding written out below, in another way than the
`tokenizers` library does it.
"""

import json
import re
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from slipstream.gguf_tokenizer import (
    build_tokenizer,
    special_roles,
    tokenizer_settings,
    whole_tokens,
)
from tests.slipstream.tiny_model import MERGES, SPECIAL, TEMPLATE, byte_symbols, vocabulary

LLAMA_CPP_IDS = {
    "2024 12345": [34, 32, 34, 36, 216, 33, 34, 35, 36, 37],
    "a1b22c333": [81, 33, 82, 34, 34, 83, 35, 35, 35],
    "3.14159e-10": [35, 30, 33, 36, 33, 37, 41, 85, 29, 33, 32],
    "1  2": [33, 256, 34],
    "1 2\n3\t4": [33, 216, 34, 198, 35, 197, 36],
    "x = [\n    1,\n    2]": [104, 446, 933, 2367, 33, 28, 2367, 34, 77],
    "x² + ½y ≥ Ⅷ ٣٤": [
        *(104, 19133, 1232, 216, 16738, 105, 39073, 216, 173, 223, 117),
        *(216, 164, 113, 164, 114),
    ],
    "२०२४": [9310, 118, 9310, 116, 9310, 118, 9310, 120],
    "": [],
    " ": [216],
    "\n": [198],
    "  leading and trailing  ": [216, 2899, 284, 35079, 256],
    "a  b   c    d": [81, 216, 278, 256, 265, 333, 287],
    "line one\nline two\n\n\nline five": [
        *(1311, 582, 198, 1311, 827, 1116, 198, 1311, 2531),
    ],
    "\ttabbed\t\tdouble\t\n": [197, 15999, 5776, 197, 197, 21414, 197, 198],
    "\u00a0nbsp\u2003em\u3000wide": [15442, 94, 32093, 321, 221, 391, 12109, 218, 3641],
    "don't we'll I'm they've she'd it's you're": [
        *(12420, 982, 392, 3060, 339, 5248, 502, 3543, 1041, 6737, 357, 506, 346, 2316),
    ],
    "DON'T WE'LL": [52, 2154, 23, 68, 26587, 23, 16421],
    "foo_bar__baz": [15236, 79, 6299, 890, 45511],
    "naïve café Übergröße Ωmega": [
        *(3546, 46494, 37366, 5549, 246, 5799, 98, 7466, 34878, 85, 5664, 119, 93, 9005),
    ],
    "日本語のテキスト": [
        *(23274, 115, 40993, 179, 120, 248, 26453, 11100, 224, 10391, 251, 10391, 134, 11100, 226),
    ],
    "Привет, мир!": [155, 249, 46879, 16464, 32547, 28, 41337, 7872, 9175, 17],
    "مرحبا": [21706, 20602, 44626, 31462, 10805],
    "😀👍🏽👨\u200d👩\u200d👧": [
        *(10813, 242, 218, 10813, 235, 231, 10813, 233, 138, 10813, 235, 118, 321, 231),
        *(10813, 235, 119, 321, 231, 10813, 235, 117),
    ],
    "<|im_start|>user\nHi 42<|im_end|>\n<|im_start|>assistant\n": [
        *(1, 4093, 198, 26843, 216, 36, 34, 2, 198, 1, 520, 9531, 198),
    ],
    "<|endoftext|>x<repo_name> y": [0, 104, 3, 329],
    "\u0004a\u001db": [81, 82],  # neither control character has a token: both are dropped
}

# What Python does not know yet, newer Unicode tables may call a letter.
ASSIGNED = st.characters(exclude_categories=("Cn", "Cs"))

# GPT-2's split for text without numbers, whose \p{L} is then just [^\W_].
WORDS = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[^\W_]+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")


def pieces(text):
    """Split off each numeric character, then split what lies between like GPT-2."""
    between = ""
    for character in text:
        if unicodedata.category(character).startswith("N"):
            yield from WORDS.findall(between)
            yield character
            between = ""
        else:
            between += character
    yield from WORDS.findall(between)


def merged(symbols, ranks):
    """Merge the pair of lowest rank, leftmost first, until no pair is known."""
    while True:
        pairs = list(pairwise(symbols))
        best = min(pairs, key=lambda pair: ranks.get(pair, len(ranks)), default=None)
        if best not in ranks:
            return symbols
        at = pairs.index(best)
        symbols = [*symbols[:at], "".join(best), *symbols[at + 2 :]]


def reference_ids(text, vocab, ranks):
    """Ids of a text without special tokens; bytes that have no token are dropped first."""
    symbol_of = byte_symbols()
    ids = []
    for piece in pieces(text):
        symbols = [symbol_of[byte] for byte in piece.encode() if symbol_of[byte] in vocab]
        ids += [vocab[symbol] for symbol in merged(symbols, ranks)]
    return ids


def tiny_metadata(**changes):
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.tokens": vocabulary(),
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(vocabulary()) - len(SPECIAL)),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
        "llama.context_length": 256,
        **changes,
    }


def tokens_of(tokenizer, text):
    return tokenizer.encode(text).tokens


def test_vocabulary_and_merges_are_the_files():
    saved = json.loads(build_tokenizer(tiny_metadata()).to_str())

    assert saved["model"]["vocab"] == {token: i for i, token in enumerate(vocabulary())}
    assert saved["model"]["merges"] == [merge.split(" ") for merge in MERGES]


def test_merges_apply_and_the_space_belongs_to_the_word():
    assert tokens_of(build_tokenizer(tiny_metadata()), "hello w") == ["hello", "Ġw"]


def test_digits_never_merge_even_where_the_file_knows_the_pair():
    assert tokens_of(build_tokenizer(tiny_metadata()), "12") == ["1", "2"]


def test_without_the_digit_split_the_ids_differ():
    tokenizer = build_tokenizer(tiny_metadata())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)

    assert tokens_of(tokenizer, "12") == ["12"]


def test_control_tokens_match_whole_and_are_special():
    tokenizer = build_tokenizer(tiny_metadata())

    assert tokens_of(tokenizer, "<|im_start|>he") == ["<|im_start|>", "he"]
    assert tokenizer.decode([1, *tokenizer.encode("he").ids]) == "he"


def test_user_defined_tokens_match_whole_but_are_not_special():
    kinds = [4, *tiny_metadata()["tokenizer.ggml.token_type"][1:]]
    metadata = tiny_metadata(**{"tokenizer.ggml.token_type": kinds})

    assert [token.special for token in whole_tokens(metadata)] == [False, True, True]
    assert build_tokenizer(metadata).decode([0]) == "<|endoftext|>"


def test_roles_and_settings_name_the_files_tokens():
    metadata = tiny_metadata()

    assert special_roles(metadata) == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
    }
    assert tokenizer_settings(metadata)["model_max_length"] == 256
    assert tokenizer_settings(metadata)["chat_template"] == TEMPLATE


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenizer.ggml.model", "llama"),
        ("tokenizer.ggml.pre", "gpt-2"),
        ("tokenizer.ggml.add_bos_token", True),
    ],
)
def test_another_kind_of_tokenizer_is_refused_by_name(key, value):
    with pytest.raises(ValueError, match=f"{key} = {value!r} is not supported"):
        build_tokenizer(tiny_metadata(**{key: value}))


@given(st.text(alphabet=st.sampled_from("hello w12'st_\n é½"), max_size=30))
def test_the_tiny_tokenizer_agrees_with_the_reference(text):
    vocab = {token: index for index, token in enumerate(vocabulary())}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(MERGES)}
    tokenizer = build_tokenizer(tiny_metadata())

    assert tokenizer.encode(text).ids == reference_ids(text, vocab, ranks)
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.fixture(scope="module")
def tokenizer(smollm2):
    return Tokenizer.from_file(str(smollm2 / "tokenizer.json"))


@pytest.mark.model
@pytest.mark.parametrize("text", LLAMA_CPP_IDS)
def test_ids_are_those_of_llama_cpp(tokenizer, text):
    assert tokenizer.encode(text).ids == LLAMA_CPP_IDS[text]


@pytest.mark.model
@pytest.mark.parametrize("text", ["1  2", "x = [\n    1,\n    2]"])
def test_a_plain_gpt2_split_misses_the_ids_of_llama_cpp(smollm2, text):
    """The negative control: spaces before a digit go astray without the digit split."""
    plain = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    plain.pre_tokenizer = ByteLevel(add_prefix_space=False)

    assert plain.encode(text).ids != LLAMA_CPP_IDS[text]


@pytest.fixture(scope="module")
def reference(smollm2):
    """The independent encoder over the embedded model's vocabulary and merges."""
    model = json.loads((smollm2 / "tokenizer.json").read_text())["model"]
    ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
    return lambda text: reference_ids(text, model["vocab"], ranks)


@pytest.mark.model
@given(text=st.text(ASSIGNED, max_size=40) | st.text(alphabet="ab '\n\t12½_.<|>", max_size=40))
def test_ids_agree_with_the_reference(tokenizer, reference, text):
    # Python counts U+001C..U+001F as white space, the split's \s does not.
    text = re.sub("[\x1c-\x1f]", "", text)

    assert tokenizer.encode(text).ids == reference(text)


@pytest.mark.model
def test_the_reference_agrees_with_llama_cpp(reference):
    plain = {
        text: ids for text, ids in LLAMA_CPP_IDS.items() if "<|" not in text and "\x1d" not in text
    }

    assert {text: reference(text) for text in plain} == plain
