"""The tokenizer inside a GGUF file, as a `tokenizers.Tokenizer` and its Hugging Face settings.

Only byte-level BPE with the "smollm" split is known; any other kind is refused, because a wrong
split does not fail: it quietly gives other token ids.
"""

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

CONTROL, USER_DEFINED = 3, 4
"""GGUF token types that stand for a whole piece of text and are never merged."""

SPECIAL_ROLES = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
}


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Byte-level BPE with the GGUF's vocabulary, merges and special tokens.

    A byte with no token of its own is dropped, as llama.cpp does. ValueError for another tokenizer.
    """
    _require_smollm(metadata)
    vocab = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [_pair(merge) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = smollm_split()
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_tokens(whole_tokens(metadata))
    return tokenizer


def smollm_split() -> Sequence:
    """GPT-2's split, with every digit on its own first (llama.cpp's pre-tokenizer "smollm")."""
    return Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )


def whole_tokens(metadata: Mapping[str, Any]) -> list[AddedToken]:
    """Tokens matched as a whole in the text, special where the GGUF calls them control tokens."""
    kinds = zip(
        metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"], strict=True
    )
    return [
        AddedToken(token, special=kind == CONTROL, normalized=False)
        for token, kind in kinds
        if kind in (CONTROL, USER_DEFINED)
    ]


def special_roles(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Which token begins, ends, pads: `{"eos_token": "<|im_end|>", ...}`."""
    tokens = metadata["tokenizer.ggml.tokens"]
    return {role: tokens[metadata[key]] for role, key in SPECIAL_ROLES.items()}


def tokenizer_settings(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The rest of tokenizer_config.json; its class has `transformers` read tokenizer.json as is."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": metadata["llama.context_length"],
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": metadata["tokenizer.chat_template"],
    }


def _require_smollm(metadata: Mapping[str, Any]) -> None:
    required = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.add_bos_token": False,
    }
    for key, value in required.items():
        if metadata[key] != value:
            raise ValueError(f"{key} = {metadata[key]!r} is not supported, only {value!r}")


def _pair(merge: str) -> tuple[str, str]:
    left, right = merge.split(" ")
    return left, right
