"""What two services must agree on before hidden states flow: the facts, and how they may differ.

The digests are here so that both sides compute the same one from their own copy of a model
directory. Weights are sampled, not read whole: a 600 GB checkpoint is told apart in a moment.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from protos import speculation_pb2 as pb

PROTOCOL_VERSION = 1
_SAMPLES_PER_FILE = 64
_SAMPLE_BYTES = 4096


@dataclass(frozen=True)
class Pairing:
    """One side's facts. Empty strings fit anything. Tap layers are input-of-layer ids."""

    hidden_size: int
    vocab_size: int
    tap_layers: tuple[int, ...]
    tap_dtype: int = pb.DTYPE_BF16
    target_fingerprint: str = ""
    tokenizer_digest: str = ""
    protocol_version: int = PROTOCOL_VERSION

    @classmethod
    def from_proto(cls, message: pb.Pairing) -> Pairing:
        return cls(
            message.hidden_size,
            message.vocab_size,
            tuple(message.tap_layers),
            message.tap_dtype,
            message.target_fingerprint,
            message.tokenizer_digest,
            message.protocol_version,
        )

    def to_proto(self) -> pb.Pairing:
        return pb.Pairing(**vars(self))

    def mismatches(self, target: Pairing) -> list[str]:
        """Return why a subscriber with these facts does not fit `target`; empty if it does."""
        found = [
            f"{name}: the drafter has {ours!r}, the target has {theirs!r}"
            for name, ours, theirs in self._compared(target)
            if ours != theirs
        ]
        missing = [layer for layer in self.tap_layers if layer not in target.tap_layers]
        if missing:
            found.append(
                f"tap_layers: the drafter reads layers {list(self.tap_layers)}, "
                f"the target taps {list(target.tap_layers)} (input-of-layer); missing {missing}"
            )
        return found

    def _compared(self, target: Pairing) -> list[tuple[str, object, object]]:
        names = ["protocol_version", "vocab_size"]
        if self.tap_layers:
            names += ["hidden_size", "tap_dtype"]
        for name in ("target_fingerprint", "tokenizer_digest"):
            if getattr(self, name) and getattr(target, name):
                names.append(name)
        return [(name, getattr(self, name), getattr(target, name)) for name in names]


def tokenizer_digest(model_dir: Path) -> str:
    """Return the SHA-256 of a model directory's tokenizer.json, or "" if it has none."""
    path = model_dir / "tokenizer.json"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def fingerprint(model_dir: Path) -> str:
    """Return the digest of a model directory: configuration, and samples of every weight file."""
    digest = hashlib.sha256()
    config = json.loads((model_dir / "config.json").read_text())
    digest.update(json.dumps(config, sort_keys=True).encode())
    for path in sorted(model_dir.glob("*.safetensors")):
        digest.update(f"{path.name}:{path.stat().st_size}".encode())
        for sample in _samples(path):
            digest.update(sample)
    return digest.hexdigest()[:32]


def _samples(path: Path) -> list[bytes]:
    """Return evenly spaced pieces of a file, its header among them."""
    size = path.stat().st_size
    stride = max(size // _SAMPLES_PER_FILE, _SAMPLE_BYTES)
    with path.open("rb") as file:
        return [_read_at(file, offset) for offset in range(0, size, stride)]


def _read_at(file: BinaryIO, offset: int) -> bytes:
    file.seek(offset)
    return file.read(_SAMPLE_BYTES)
