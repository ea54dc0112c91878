"""The samples of recordings, read when they are wanted, in batches of about equal size.

Legend: B samples of a batch, L tokens of the longest, X tapped width, T rows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from training.recording import Shard, Source, read_shards
from training.sample import Sample, answered_mask


@dataclass(frozen=True)
class Entry:
    """Where a sample lies."""

    shard: Shard
    number: int
    num_tokens: int


@dataclass(frozen=True)
class Batch:
    """Samples side by side, padded at the end with zeros that nobody answered."""

    tokens_BL: torch.Tensor
    taps_BLX: torch.Tensor
    answered_BL: torch.Tensor
    """Which tokens the target chose."""


class Dataset:
    """The samples of several recordings of one target."""

    def __init__(self, directories: Sequence[Path], *, held_out: bool, max_len: int) -> None:
        """Take samples that are held out, or all others; longer ones are cut.

        Raises ValueError if there are none, if one is given twice, or if they differ.
        """
        if len({directory.resolve() for directory in directories}) < len(directories):
            raise ValueError(f"a recording is given twice: {', '.join(map(str, directories))}")
        shards = [shard for directory in directories for shard in read_shards(directory)]
        self.source: Source = shards[0].source
        for shard in shards:
            if shard.source != self.source:
                raise ValueError(
                    f"{shard.path} is of another target than {shards[0].path}: "
                    f"{shard.source} and {self.source}"
                )
        self._max_len = max_len
        self.entries = [
            Entry(shard, number, min(num_tokens, max_len))
            for shard in shards
            for number, (facts, num_tokens) in enumerate(
                zip(shard.facts, shard.lengths, strict=True)
            )
            if facts.held_out == held_out
        ]
        if not self.entries:
            raise ValueError(
                f"{', '.join(map(str, directories))}: no samples "
                f"that are {'held out' if held_out else 'to be trained on'}"
            )

    @property
    def num_tokens(self) -> int:
        """Tokens of all samples."""
        return sum(entry.num_tokens for entry in self.entries)

    def limited(self, num_tokens: int) -> Dataset:
        """Return the first samples, of so many tokens together."""
        part, taken = object.__new__(Dataset), 0
        part.source, part._max_len, part.entries = self.source, self._max_len, []
        for entry in self.entries:
            if taken >= num_tokens:
                break
            part.entries.append(entry)
            taken += entry.num_tokens
        return part

    def samples(self) -> Iterator[Sample]:
        """Yield all samples in order."""
        for entry in self.entries:
            yield entry.shard.sample(entry.number)

    def token_counts(self, vocab_size: int) -> torch.Tensor:
        """Return how often the target chose each token, [V]."""
        counts_V = torch.zeros(vocab_size, dtype=torch.long)
        for entry in self.entries:
            facts = entry.shard.facts[entry.number]
            tokens = entry.shard.tokens(entry.number)
            answered = tokens[answered_mask(facts.answers, len(tokens))]
            counts_V += torch.bincount(answered.long(), minlength=vocab_size)
        return counts_V

    def groups(self, batch_tokens: int, seed: int) -> list[list[Entry]]:
        """Return all samples once, in batches and an order of this seed.

        Those of a batch are of like length, and have at most so many tokens with their padding.
        """
        choices = random.Random(seed)
        # A little noise, so that samples meet others in the next epoch.
        by_length = sorted(
            self.entries, key=lambda entry: entry.num_tokens * choices.uniform(0.95, 1.05)
        )
        groups = list(_groups(by_length, batch_tokens))
        choices.shuffle(groups)
        return groups

    def batch(self, group: Sequence[Entry]) -> Batch:
        """Read the samples of a batch."""
        length = max(entry.num_tokens for entry in group)
        samples = [entry.shard.sample(entry.number) for entry in group]
        width = samples[0].taps_TX.shape[1]
        tokens_BL = torch.zeros(len(group), length, dtype=torch.long)
        answered_BL = torch.zeros(len(group), length, dtype=torch.bool)
        taps_BLX = torch.zeros(len(group), length, width, dtype=samples[0].taps_TX.dtype)
        for row, sample in enumerate(samples):
            kept = min(len(sample.tokens_N), length)
            tokens_BL[row, :kept] = sample.tokens_N[:kept]
            answered_BL[row, :kept] = answered_mask(sample.facts.answers, kept)
            rows = min(len(sample.taps_TX), length)
            taps_BLX[row, :rows] = sample.taps_TX[:rows]
        return Batch(tokens_BL, taps_BLX, answered_BL)


def padded_tokens(group: Sequence[Entry]) -> int:
    """Return the tokens of a batch with their padding: what a pass over it costs."""
    return len(group) * max(entry.num_tokens for entry in group)


def _groups(entries: Sequence[Entry], batch_tokens: int) -> Iterator[list[Entry]]:
    """Cut entries of rising length into groups that have so many tokens with their padding."""
    group: list[Entry] = []
    longest = 0
    for entry in entries:
        longest = max(longest, entry.num_tokens)
        if group and (len(group) + 1) * longest > batch_tokens:
            yield group
            group, longest = [], entry.num_tokens
        group.append(entry)
    if group:
        yield group
