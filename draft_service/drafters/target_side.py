"""What a drafter must know of the target that it is loaded for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from protos import speculation_pb2 as pb


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
