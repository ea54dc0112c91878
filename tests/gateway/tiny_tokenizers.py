"""Small tokenizers of the kinds that models bring, built in memory."""

import json
from functools import cache
from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = [
    "The drafter guesses a few tokens, the target checks them in one step.",
    "Wie schnell ist schnell? So schnell wie der Windschatten es erlaubt.",
    "def step(self): return self.commit(self.verify(self.draft()))",
] * 4


@cache
def byte_level() -> Tokenizer:
    """As GPT-2, Llama 3, Qwen: every byte a token; added tokens outside the byte alphabet, too."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["<｜tool▁call｜>", "two words", "Größe"])
    return tokenizer


@cache
def byte_fallback(strip: bool = True) -> Tokenizer:
    """As Llama 2 and Mistral (`strip`) or Gemma: bytes as `<0xE2>` where the vocabulary ends."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    tokens += ["▁", *"abcdehlorw", "▁w", "he", "ll", "he▁", "▁▁"]
    merges = [("▁", "w"), ("h", "e"), ("l", "l"), ("he", "▁"), ("▁", "▁")]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True))
    prepend = [normalizers.Prepend("▁")] if strip else []
    tokenizer.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
    fallback = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    ends = [decoders.Strip(" ", 1, 0)] if strip else []
    tokenizer.decoder = decoders.Sequence(fallback + ends)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


@cache
def metaspace(prepend_scheme: str = "always") -> Tokenizer:
    """As T5: unigram pieces, `▁` for spaces."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=prepend_scheme)
    trainer = trainers.UnigramTrainer(
        vocab_size=120,
        special_tokens=["<pad>", "</s>", "<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("▁two▁words", normalized=False)])
    return tokenizer


@cache
def word_level() -> Tokenizer:
    """No decoder: pieces are joined by spaces."""
    vocab = {"<unk>": 0, "fast": 1, "faster": 2, "": 3}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<unk>"])
    return tokenizer


def write_directory(directory: Path, tokenizer: Tokenizer, **configs: object) -> Path:
    """A model directory; each further argument becomes `<name>.json`."""
    tokenizer.save(str(directory / "tokenizer.json"))
    for name, config in configs.items():
        (directory / f"{name}.json").write_text(json.dumps(config), encoding="utf-8")
    return directory
