"""Token ids are those of the model's own files; broken files are refused by name."""

import hashlib

import pytest
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from gateway.tokenizer import Tokenizer
from tests.gateway.tiny_tokenizers import byte_fallback, byte_level, metaspace, write_directory


def with_specials(post_processor=None):
    """Ids 0 "a", 1 "<bos>", 2 "<eos>"."""
    backend = Backend(models.BPE({"a": 0}, []))
    backend.add_special_tokens(["<bos>", "<eos>"])
    if post_processor is not None:
        backend.post_processor = post_processor
    return backend


BOS_TEMPLATE = TemplateProcessing("<bos> $A", special_tokens=[("<bos>", 1)])


class TestEncode:
    def test_decode_inverts_encode(self):
        """Any text comes back from a byte-level tokenizer."""
        tokenizer = Tokenizer(byte_level())
        text = "Schnell! 😀 two words\n\tünïcödé"

        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=True)) == text

    def test_special_tokens_in_the_text_are_recognised(self):
        tokenizer = Tokenizer(byte_level())
        ids = tokenizer.encode("<|im_start|>", add_special_tokens=False)

        assert ids == [byte_level().token_to_id("<|im_start|>")]

    def test_the_post_processor_adds_bos_only_when_asked(self):
        tokenizer = Tokenizer(with_specials(BOS_TEMPLATE))

        assert tokenizer.encode("a", add_special_tokens=True) == [1, 0]
        assert tokenizer.encode("a", add_special_tokens=False) == [0]

    @pytest.mark.parametrize("post_processor", [None, BOS_TEMPLATE], ids=["none", "template"])
    def test_add_bos_token_gives_exactly_one_bos(self, post_processor):
        """The flag fills in for a post-processor that adds none and never doubles one."""
        config = {"bos_token": "<bos>", "add_bos_token": True}
        tokenizer = Tokenizer(with_specials(post_processor), config=config)

        assert tokenizer.encode("a", add_special_tokens=True) == [1, 0]
        assert tokenizer.encode("a", add_special_tokens=False) == [0]

    @pytest.mark.parametrize("bos", [None, "<not in the vocabulary>"])
    def test_add_bos_token_without_a_bos_adds_nothing(self, bos):
        config = {"bos_token": bos, "add_bos_token": True}

        ids = Tokenizer(with_specials(), config=config).encode("a", add_special_tokens=True)

        assert ids == [0]

    def test_truncation_and_padding_in_the_file_are_ignored(self):
        """A prompt is never cut or padded silently."""
        backend = with_specials()
        backend.enable_truncation(2)
        backend.enable_padding(length=8)

        assert Tokenizer(backend).encode("aaa", add_special_tokens=True) == [0, 0, 0]

    def test_a_lone_surrogate_is_a_value_error(self):
        with pytest.raises(ValueError, match="not valid Unicode"):
            Tokenizer(byte_level()).encode("\ud800", add_special_tokens=False)


class TestDecode:
    def test_special_tokens_are_skipped_unless_asked_for(self):
        tokenizer = Tokenizer(with_specials())

        assert tokenizer.decode([1, 0, 2]) == "a"
        assert "<eos>" in tokenizer.decode([1, 0, 2], skip_special_tokens=False)

    def test_padding_ids_of_the_model_add_nothing(self):
        """A model may sample an id of its padded embedding that no token has."""
        tokenizer = Tokenizer(byte_level())

        assert tokenizer.decode([tokenizer.vocab_size + 5]) == ""
        assert tokenizer.pieces([tokenizer.vocab_size + 5]) == []

    @pytest.mark.parametrize("backend", [byte_level(), byte_fallback(), metaspace()])
    def test_token_text_keeps_the_leading_space(self, backend):
        """A token's text is what it adds in mid-text, where decoders strip nothing."""
        tokenizer = Tokenizer(backend)
        spaced = min(p for p in backend.get_vocab() if p[0] in "Ġ▁" and p[1:].isalpha())

        assert tokenizer.token_text(backend.token_to_id(spaced)) == " " + spaced[1:]

    @pytest.mark.parametrize("token_id", [-1, 3, 2**40])
    def test_token_text_names_an_id_outside_the_vocabulary(self, token_id):
        with pytest.raises(ValueError, match=rf"token id {token_id} .* vocabulary of 3"):
            Tokenizer(with_specials()).token_text(token_id)


class TestVocabulary:
    def test_vocab_size_counts_added_tokens(self):
        assert Tokenizer(with_specials()).vocab_size == 3

    def test_named_special_tokens_may_be_strings_or_objects(self):
        config = {
            "bos_token": {"content": "<bos>", "lstrip": False},
            "eos_token": "<eos>",
            "pad_token": None,
            "add_bos_token": False,
        }
        tokenizer = Tokenizer(with_specials(), config=config)

        assert tokenizer.special_tokens == {"bos_token": "<bos>", "eos_token": "<eos>"}
        assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, {2})

    def test_an_added_token_that_is_not_special_is_text(self):
        backend = with_specials()
        backend.add_tokens([AddedToken("<tool>", special=False)])

        assert Tokenizer(backend).decode([3]) == "<tool>"


class TestFromDirectory:
    def test_the_digest_is_of_the_file_as_it_is(self, tmp_path):
        directory = write_directory(tmp_path, byte_level())
        expected = hashlib.sha256((tmp_path / "tokenizer.json").read_bytes()).hexdigest()

        assert Tokenizer.from_directory(directory).digest == expected

    @pytest.mark.parametrize(
        ("configs", "expected"),
        [
            ({}, set()),
            ({"config": {"eos_token_id": 2}}, {2}),
            ({"config": {"eos_token_id": None}}, set()),
            ({"config": {"text_config": {"eos_token_id": 2}}}, {2}),
            ({"generation_config": {"eos_token_id": [0, 2]}}, {0, 2}),
            ({"generation_config": {"eos_token_id": 0}, "config": {"eos_token_id": 2}}, {0}),
            ({"generation_config": {}, "config": {"eos_token_id": 2}}, {2}),
            ({"generation_config": {"eos_token_id": 0}, "tokenizer_config": {}}, {0}),
            (
                {
                    "generation_config": {"eos_token_id": 0},
                    "tokenizer_config": {"eos_token": "<eos>"},
                },
                {0, 2},
            ),
        ],
    )
    def test_eos_comes_from_all_files_that_speak_of_it(self, tmp_path, configs, expected):
        directory = write_directory(tmp_path, with_specials(), **configs)

        assert Tokenizer.from_directory(directory).eos_token_ids == expected

    def test_a_missing_tokenizer_json_is_named(self, tmp_path):
        with pytest.raises(ValueError, match=r"tokenizer\.json not found: .*save_pretrained") as e:
            Tokenizer.from_directory(tmp_path)
        assert str(tmp_path) in str(e.value)

    def test_a_broken_tokenizer_json_is_named(self, tmp_path):
        (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")

        with pytest.raises(ValueError, match=r"tokenizer\.json cannot be read"):
            Tokenizer.from_directory(tmp_path)

    @pytest.mark.parametrize(
        ("content", "reason"),
        [("{", "not valid JSON"), (b"\xff", "not valid JSON"), ("[]", "must hold a JSON object")],
    )
    def test_a_broken_config_is_named(self, tmp_path, content, reason):
        write_directory(tmp_path, with_specials())
        raw = content if isinstance(content, bytes) else content.encode()
        (tmp_path / "generation_config.json").write_bytes(raw)

        with pytest.raises(ValueError, match=rf"generation_config\.json .*{reason}"):
            Tokenizer.from_directory(tmp_path)

    @pytest.mark.parametrize("value", ["</s>", [1, "</s>"], -1, 1.5])
    def test_an_eos_id_that_is_none_is_named(self, tmp_path, value):
        directory = write_directory(tmp_path, with_specials(), config={"eos_token_id": value})

        with pytest.raises(ValueError, match=r"config\.json: eos_token_id"):
            Tokenizer.from_directory(directory)


@pytest.mark.model
class TestSmolLM2:
    @pytest.mark.parametrize("text", ["Hello, world!", " 12 + 34 =", "naïve 😀\n", "<|im_end|>"])
    @pytest.mark.parametrize("add_special_tokens", [True, False])
    def test_ids_are_those_of_transformers(self, smollm2, text, add_special_tokens):
        transformers = pytest.importorskip("transformers")
        reference = transformers.PreTrainedTokenizerFast.from_pretrained(smollm2)
        expected = reference.encode(text, add_special_tokens=add_special_tokens)

        tokenizer = Tokenizer.from_directory(smollm2)

        assert tokenizer.encode(text, add_special_tokens=add_special_tokens) == expected

    def test_eos_ends_the_turn(self, smollm2):
        tokenizer = Tokenizer.from_directory(smollm2)

        assert [tokenizer.token_text(i) for i in tokenizer.eos_token_ids] == ["<|im_end|>"]
