"""What a drafter must know of the target that it is loaded for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from protos import speculation_pb2 as pb
from protos import target_pb2


@dataclass(frozen=True)
class TargetSide:
    """The target's facts, and where its weights lie for drafters that share some of them."""

    num_layers: int
    vocab_size: int
    hidden_size: int
    max_context_len: int
    tap_dtype: int = pb.DTYPE_BF16
    model_dir: Path | None = None
    tokenizer_digest: str = ""

    @classmethod
    def from_proto(cls, info: target_pb2.GetTargetResponse, model_dir: Path | None) -> TargetSide:
        """Return what a running target says of itself."""
        return cls(
            num_layers=info.num_layers,
            vocab_size=info.pairing.vocab_size,
            hidden_size=info.pairing.hidden_size,
            max_context_len=info.max_context_len,
            tap_dtype=info.pairing.tap_dtype,
            model_dir=model_dir,
            tokenizer_digest=info.pairing.tokenizer_digest,
        )
