"""Taps as they lie in a recording: as they were, or in a byte a value.

int8 keeps a scale for every group of values: a residual stream has a few values a hundred times
larger than the others, and one scale for all would round those away.

Legend: T rows, X tapped width, G groups of a row.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

ENCODINGS = ("bf16", "int8")
_GROUP = 32


def check_encoding(encoding: str) -> str:
    """Return the name of an encoding. Raises ValueError for an unknown one."""
    if encoding not in ENCODINGS:
        raise ValueError(f"taps must be one of {', '.join(ENCODINGS)}, got {encoding!r}")
    return encoding


def encode_taps(taps_TX: torch.Tensor, encoding: str) -> dict[str, torch.Tensor]:
    """Return the tensors that stand for taps. Raises ValueError for an unknown encoding."""
    if check_encoding(encoding) == "bf16":
        return {"taps": taps_TX.to(torch.bfloat16)}
    grouped_TGX = taps_TX.float().unflatten(1, (-1, _GROUP))
    scales_TG = (grouped_TGX.abs().amax(-1) / 127).clamp(min=1e-20).bfloat16()
    # Divided by the scale that will be multiplied with; its rounding may let a value pass 127.
    whole_TGX = (grouped_TGX / scales_TG.float()[..., None]).round().clamp(-127, 127)
    return {"taps_int8": whole_TGX.flatten(1).to(torch.int8), "tap_scales": scales_TG}


def decode_taps(tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return taps from the tensors that stand for them, [T, X] bfloat16."""
    if "taps" in tensors:
        return tensors["taps"]
    whole_TGX = tensors["taps_int8"].float().unflatten(1, (-1, _GROUP))
    return (whole_TGX * tensors["tap_scales"].float()[..., None]).flatten(1).bfloat16()
