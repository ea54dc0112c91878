"""Samples that no target was needed for."""

import torch

from training.recording import Recording, Source
from training.sample import Facts, Sample


def source_of(hidden=4, tap_layers=(1, 2, 4), **fields):
    """A source with so wide taps; `fields` override the rest."""
    given = {
        "model_name": "tiny",
        "target_fingerprint": "f00d",
        "tokenizer_digest": "cafe",
        "num_layers": 4,
        "hidden_size": hidden,
        "vocab_size": 50,
        "tap_layers": tuple(tap_layers),
        "weights": "float32",
        "taps": "bf16",
    }
    return Source(**given | fields)


def made_sample(sample_id="a", num_tokens=12, prompt=4, width=12, seed=0, vocab=50, **facts):
    """A sample of random tokens and taps whose answer begins behind the prompt."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, vocab, (num_tokens,), generator=generator, dtype=torch.int32)
    taps = torch.randn(num_tokens - 1, width, generator=generator).bfloat16()
    given = {"task": "chat", "answers": ((prompt, num_tokens),), "temperature": 0.0}
    given |= {"top_p": 1.0, "seed": 7} | facts
    return Sample(Facts(sample_id, **given), tokens, taps)


def record_samples(directory, samples, source=None, max_bytes=2**30):
    """Write samples into one shard of a recording; return the directory."""
    recording = Recording(directory, source or source_of(), max_bytes)
    for sample in samples:
        recording.add(sample)
    recording.flush()
    return directory


def same(one, other):
    """Whether two samples are equal in every bit."""
    return (
        one.facts == other.facts
        and torch.equal(one.tokens_N, other.tokens_N)
        and torch.equal(one.taps_TX, other.taps_TX)
    )
