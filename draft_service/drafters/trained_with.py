"""What a drafter says of the tokenizer it was trained with."""

from __future__ import annotations

from pathlib import Path

from draft_service.weights import read_config
from protos.pairing import tokenizer_digest

SECTION = "slipstream"
"""The section of config.json in which our trainer states it; other engines do not look there."""


def trained_tokenizer_digest(drafter_dir: Path) -> str:
    """Return the digest of the tokenizer.json shipped with a drafter, or the one that is stated.

    "" if there is neither: then it is not compared.
    """
    stated = read_config(drafter_dir).get(SECTION) or {}
    return tokenizer_digest(drafter_dir) or str(stated.get("tokenizer_digest", ""))
