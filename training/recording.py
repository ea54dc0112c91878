"""A recording: a directory of shards, each whole and described by itself, and a manifest.

A shard is written under another name and renamed when it is safe on the disk, so there is none that
is half there; the manifest only repeats what the shards say. A recording that was killed goes on
where its last shard ends: samples are known by their ids.

    manifest.json             source, counts by task and split, digests of the shards
    shard-00000.safetensors   tokens, taps and the offsets of samples; their facts as metadata
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from training.sample import Facts, Sample
from training.tap_encoding import check_encoding, decode_taps, encode_taps

FORMAT_VERSION = 1
_OURS = ("shard-*.safetensors", "manifest.json", "*.tmp", "recording.lock")
_SHARD_BYTES = 64 * 2**20
_MIN_FREE_BYTES = 2**30


@dataclass(frozen=True)
class Source:
    """The target that was recorded, and how."""

    model_name: str
    target_fingerprint: str
    tokenizer_digest: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    tap_layers: tuple[int, ...]
    """Input-of-layer ids; the number of layers itself is the last one's output."""
    weights: str
    taps: str
    """How taps are kept: bf16 or int8."""
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        check_encoding(self.taps)

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> Source:
        version = entry.get("format_version")
        if version != FORMAT_VERSION:
            raise ValueError(f"the recording has format {version}, known: {FORMAT_VERSION}")
        return cls(**{**entry, "tap_layers": tuple(entry["tap_layers"])})


class DiskFullError(OSError):
    """The recording has reached its limit, or the disk its end."""


class Recording:
    """A recording that is written to. Only one process may do so at a time."""

    def __init__(
        self, directory: Path, source: Source, max_bytes: int, flush_s: float = 60.0
    ) -> None:
        """Begin a recording, or go on with one. Raises ValueError if it is of another source.

        What was added is on the disk after `flush_s` seconds at most, if there is more to add.
        Raises ValueError too if there is something else, or another recorder writes to it, and
        DiskFullError if there is no room to begin with.
        """
        _check_ours(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(directory)
        for unfinished in directory.glob("*.tmp"):
            unfinished.unlink()
        self._directory = directory
        self._source = source
        self._max_bytes = max_bytes
        self._flush_s = flush_s
        self._flushed = time.monotonic()
        self._pending: list[Sample] = []
        self._shards = list(_described_shards(directory))
        for shard in self._shards:
            _check_same(shard.source, source, shard.path)
        self._check_room(1)
        self.sample_ids = {facts.sample_id for shard in self._shards for facts in shard.facts}
        self.num_tokens = sum(shard.num_tokens for shard in self._shards)

    @property
    def num_samples(self) -> int:
        """How many conversations there are, those not yet on the disk among them."""
        return len(self.sample_ids)

    def add(self, sample: Sample) -> None:
        """Take a sample. Raises DiskFullError, and keeps what it has, if there is no room."""
        self._pending.append(sample)
        self.sample_ids.add(sample.facts.sample_id)
        self.num_tokens += len(sample.tokens_N)
        is_large = sum(pending.num_bytes for pending in self._pending) >= _SHARD_BYTES
        if is_large or time.monotonic() - self._flushed > self._flush_s:
            self.flush()

    def flush(self) -> None:
        """Write what is pending as a shard. Raises DiskFullError."""
        self._flushed = time.monotonic()
        if not self._pending:
            return
        tensors = _joined(self._pending, self._source.taps)
        self._check_room(sum(tensor.nbytes for tensor in tensors.values()))
        path = self._directory / f"shard-{self._next_number():05d}.safetensors"
        facts = [asdict(sample.facts) for sample in self._pending]
        metadata = {"source": json.dumps(asdict(self._source)), "samples": json.dumps(facts)}
        _write_atomically(path, tensors, metadata)
        self._pending = []
        self._shards.append(_describe(path))
        self._write_manifest()

    def _next_number(self) -> int:
        return 1 + max((int(shard.path.stem[6:]) for shard in self._shards), default=-1)

    def _check_room(self, num_bytes: int) -> None:
        taken = sum(shard.path.stat().st_size for shard in self._shards)
        if taken + num_bytes > self._max_bytes:
            raise DiskFullError(
                f"the recording may take {self._max_bytes} bytes, it has {taken} "
                f"and the next shard would add {num_bytes}"
            )
        free = shutil.disk_usage(self._directory).free
        if free - num_bytes < _MIN_FREE_BYTES:
            raise DiskFullError(
                f"{self._directory} has {free} bytes free, at least {_MIN_FREE_BYTES} must stay"
            )

    def _write_manifest(self) -> None:
        facts = [of for shard in self._shards for of in shard.facts]
        manifest = {
            "source": asdict(self._source),
            "tokens": sum(shard.num_tokens for shard in self._shards),
            "answered_tokens": sum(end - begin for of in facts for begin, end in of.answers),
            "samples": len(facts),
            "held_out_samples": sum(of.held_out for of in facts),
            "samples_by_task": dict(Counter(of.task for of in facts)),
            "samples_by_temperature": dict(Counter(str(of.temperature) for of in facts)),
            "shards": [
                {"file": shard.path.name, "sha256": _digest(shard.path)} for shard in self._shards
            ],
        }
        temporary = self._directory / "manifest.json.tmp"
        temporary.write_text(json.dumps(manifest, indent=1) + "\n")
        temporary.replace(self._directory / "manifest.json")


@dataclass(frozen=True)
class Shard:
    """What a shard says about itself, and its samples."""

    path: Path
    source: Source
    facts: tuple[Facts, ...]
    offsets: tuple[int, ...]
    """Where the tokens of each sample begin, and where the last one's end."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all samples."""
        return self.offsets[-1]

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sample."""
        return [end - begin for begin, end in pairwise(self.offsets)]

    def tokens(self, number: int) -> torch.Tensor:
        """Return the tokens of a sample, [N]."""
        with safe_open(self.path, framework="pt") as file:
            return file.get_slice("tokens")[slice(*self.offsets[number : number + 2])]

    def sample(self, number: int) -> Sample:
        """Read a sample."""
        begin, end = self.offsets[number : number + 2]
        # Every sample has a row of taps less than tokens.
        rows = slice(begin - number, end - number - 1)
        with safe_open(self.path, framework="pt") as file:
            parts = {
                name: file.get_slice(name)[rows]
                for name in file.keys()  # noqa: SIM118
                if name.startswith("tap")
            }
            tokens_N = file.get_slice("tokens")[begin:end]
        return Sample(self.facts[number], tokens_N, decode_taps(parts))


def _check_ours(directory: Path) -> None:
    """Refuse a directory in which there is something else."""
    if directory.exists() and not directory.is_dir():
        raise ValueError(f"{directory} is a file, not the directory of a recording")
    for path in directory.glob("*"):
        if not any(path.match(pattern) for pattern in _OURS):
            raise ValueError(f"{directory} has {path.name!r} in it: a recording needs its own")


def _lock(directory: Path) -> IO[bytes]:
    """Keep others from writing for as long as the result is there."""
    lock = (directory / "recording.lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise ValueError(f"another recorder writes to {directory}") from None
    return lock


def read_shards(directory: Path) -> list[Shard]:
    """Return the shards of a recording. Raises ValueError if there are none or they differ."""
    shards = list(_described_shards(directory))
    if not shards:
        raise ValueError(f"{directory} is no recording: it has no shard-*.safetensors")
    for shard in shards:
        _check_same(shard.source, shards[0].source, shard.path)
    return shards


@cache
def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _described_shards(directory: Path) -> Iterator[Shard]:
    for path in sorted(directory.glob("shard-*.safetensors")):
        yield _describe(path)


def _describe(path: Path) -> Shard:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            offsets = tuple(file.get_tensor("offsets").tolist())
    except SafetensorError as error:
        raise ValueError(f"{path} is not a whole shard ({error}); delete it to go on") from None
    facts = tuple(Facts.from_json(entry) for entry in json.loads(metadata["samples"]))
    source = Source.from_json(json.loads(metadata["source"]))
    return Shard(path, source, facts, offsets)


def _check_same(found: Source, expected: Source, path: Path) -> None:
    for name, value in asdict(expected).items():
        if getattr(found, name) != value:
            raise ValueError(
                f"{path} was recorded with {name} {getattr(found, name)!r}, not {value!r}: "
                "choose another directory"
            )


def _joined(samples: Sequence[Sample], taps: str) -> dict[str, torch.Tensor]:
    lengths = torch.tensor([0, *(len(sample.tokens_N) for sample in samples)])
    return {
        "tokens": torch.cat([sample.tokens_N for sample in samples]),
        "offsets": lengths.cumsum(0),
        **encode_taps(torch.cat([sample.taps_TX for sample in samples]), taps),
    }


def _write_atomically(
    path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]
) -> None:
    temporary = path.with_suffix(".tmp")
    try:
        save_file(tensors, temporary, metadata)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise
